// These are layers that keep less for the backward pass than plain ones, for steps that are not
// captured, and a singular value decomposition with safe derivatives.
#pragma once

#include "reprise/runtime/nn/few_bit.h"       // IWYU pragma: export
#include "reprise/runtime/nn/finite_depth.h"  // IWYU pragma: export
#include "reprise/runtime/nn/forward_ad.h"    // IWYU pragma: export
#include "reprise/runtime/nn/group_codec.h"   // IWYU pragma: export
#include "reprise/runtime/nn/in_place_abn.h"  // IWYU pragma: export
#include "reprise/runtime/nn/reversible.h"    // IWYU pragma: export
#include "reprise/runtime/nn/svd.h"           // IWYU pragma: export
#include "reprise/runtime/nn/xconv.h"         // IWYU pragma: export
