// The queue of backward work that autograd's engine keeps for a thread.
#pragma once

namespace reprise::runtime::internal::device {

// A backward pass that ended in an exception leaves what it had not come to, with the gradients in it, in the queue
// of this thread until another pass runs. This function runs an empty pass.
void drain_backward_queue();

}  // namespace reprise::runtime::internal::device
