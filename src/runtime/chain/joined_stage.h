// Joins two stages that must run together.
#pragma once

#include "reprise/runtime/stage.h"

namespace reprise::runtime::internal::chain {

// Returns one stage that runs `first`, then `second`. It has the sharded parameters of both, and the
// ways of `first`.
Stage joined(const Stage& first, const Stage& second);

}  // namespace reprise::runtime::internal::chain
