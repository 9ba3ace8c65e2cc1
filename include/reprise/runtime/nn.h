// Layers that keep less for the backward pass than plain ones, for steps that are not captured.
#pragma once

#include "reprise/runtime/nn/few_bit.h"     // IWYU pragma: export
#include "reprise/runtime/nn/forward_ad.h"  // IWYU pragma: export
