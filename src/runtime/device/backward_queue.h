// This is the queue of backward work that autograd's engine keeps for a thread.
#pragma once

namespace reprise::runtime::internal::device {

// Empties the queue of this thread with an empty backward pass. A pass that ended in an exception
// leaves the work that it did not reach in the queue, with the gradients of this work, until
// another pass runs.
void drain_backward_queue();

}  // namespace reprise::runtime::internal::device
