// Prints of calls, by which a step is compared with the steps before it.
#pragma once

#include <cstdint>

#include "runtime/online/observed_call.h"

namespace reprise::runtime::internal::online {

// Returns a number that stands for all calls up to this one, given that of the calls before it. It
// depends on the operator, on the shapes of its operands, on which values of the step they are, and
// on the sizes of its results. Constants count only as far as they show in these.
uint64_t print_behind(uint64_t before, const ObservedCall& call);

}  // namespace reprise::runtime::internal::online
