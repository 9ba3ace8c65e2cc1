// From a step function to a recording that can be replayed: audit, recording, comparison.
#pragma once

#include "runtime/step/record.h"
#include "reprise/runtime/capture.h"

namespace reprise::runtime::internal::step {

// Runs the step four times, and leaves parameters, gradients, buffers and random state as they
// were. `parameters`: what the step may know besides those that its operations read; it may drop their
// gradients. Throws InputError as capture() does, and when two runs of the step do not do the same work.
Recording observe_step(const StepFunction& step, const Tensors& inputs, c10::Device device,
                       const std::vector<at::Tensor>& parameters);

}  // namespace reprise::runtime::internal::step
