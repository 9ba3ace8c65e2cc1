// Compares two recordings of one step, which must do the same work.
#pragma once

#include <string>

#include "runtime/step/recording.h"

namespace reprise::runtime::internal::step {

// Says in words what differs between two recordings of the same step with the same inputs, the same
// random state and the same memory outside; the text is empty if nothing does. These are compared:
//
// - the operations, their constants, and the values that they read and write;
// - host data in their operands, byte by byte;
// - the numbers that the step reads on the host.
//
// `with_gradients` says that the step found gradients when `b` began. The operations by which
// autograd adds to these gradients are then left out, and so are operations of `b` that set the
// gradients to zero.
//
// Host memory that was made anew for each run is a literal, too: `a` then keeps a copy of it.
std::string difference_of_runs(Recording& a, const Recording& b, bool with_gradients);

}  // namespace reprise::runtime::internal::step
