// Stages that are built alike cost the same; what differs between their measured times is noise.
#pragma once

#include "runtime/chain/prepare.h"
#include "reprise/model/chain.h"

namespace reprise::runtime::internal::chain {

// Gives stages of equal modules (by their printed form), boundaries and measured bytes the median of
// their times, so that a plan does not depend on which of them the noise made slower, and planners
// find the repetition of a chain. Stages without a module are left alone.
void share_times(const PreparedModel& model, Chain& chain);

}  // namespace reprise::runtime::internal::chain
