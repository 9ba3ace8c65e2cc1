// Observes a step function: audits it, records it, and compares two recordings.
#pragma once

#include "runtime/step/record.h"
#include "reprise/runtime/capture.h"

namespace reprise::runtime::internal::step {

// Runs the step four times and returns a recording that can be replayed. Parameters, gradients,
// buffers and the random state are left as they were. `parameters` are tensors that the step may
// know although no operation reads them; the step may drop their gradients. The runs are in
// `surroundings`; null stands for none. Throws InputError as capture() does, and when two runs do not
// do the same work.
Recording observe_step(const StepFunction& step, const Tensors& inputs, c10::Device device,
                       const std::vector<at::Tensor>& parameters, Surroundings* surroundings);

}  // namespace reprise::runtime::internal::step
