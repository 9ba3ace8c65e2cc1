// Stages that are built alike cost the same. Differences between their measured times are noise.
#pragma once

#include <vector>

#include "reprise/model/chain.h"
#include "runtime/chain/prepare.h"

namespace reprise::runtime::internal::chain {

// Gives stages the median of their times if they have equal modules (by their printed form),
// boundaries and measured bytes. A plan then does not depend on which stage the noise made slower,
// and planners find the repetition of a chain. Stages without a module keep their times. `inputs`
// are those of the branches.
void share_times(const PreparedModel& model, const std::vector<ChainInput>& inputs, Chain& chain);

}  // namespace reprise::runtime::internal::chain
