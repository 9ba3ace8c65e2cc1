// Finds the calls of a backward pass that make values of the forward pass again.
#pragma once

#include <cstddef>
#include <functional>
#include <set>

#include "runtime/step/recording.h"

namespace reprise::runtime::internal::step {

// Leaves out the calls of the recording that only make values again that calls of the forward pass
// have made, as those of torch.utils.checkpoint do: the same operator on the same values. What reads
// such a value then reads that of the forward pass, and a plan decides whether the value is kept or
// made again. A call stays if it writes memory from before the step, as a batch norm does, if its
// result outlives the step, or if something that stays writes over its result.
//
// `draws_alike` says of two calls that draw random numbers whether both have found the same random
// state, so that their bits are the same. Returns the positions that the calls had which are left out.
std::set<size_t> drop_reruns(Recording& recording,
                             const std::function<bool(size_t first, size_t again)>& draws_alike);

}  // namespace reprise::runtime::internal::step
