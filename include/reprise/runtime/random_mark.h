// Marks of the random state, for bindings of a language with checkpoints of its own.
#pragma once

#include <cstdint>

namespace reprise::runtime {

// A checkpoint looks at the random state in the forward pass, and sets it again when it runs a part
// again in the backward. In a followed step (CaptureOptions::follow) the state is not there, because
// the plan draws later.
//
// Returns a mark that stands for the random state of the followed step that runs on this thread. It is
// -1 where the state itself is there: outside such a step, and while the step is recorded or goes on
// without its plan.
int64_t mark_random_state();
// The function sets the random state for which this mark stands. The mark is one of this run.
void return_to_random_state(int64_t mark);

}  // namespace reprise::runtime
