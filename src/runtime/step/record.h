// Records the leaf operations of one run of a training step.
#pragma once

#include "runtime/step/audit.h"
#include "runtime/step/before_images.h"
#include "runtime/step/recording.h"
#include "reprise/runtime/capture.h"

namespace reprise::runtime::internal::step {

// Runs the step once and records it. With `learn`, watches all bytes and fills it (as slow as reading
// every operand twice); without, `known` says what an earlier run learned. What the step writes outside
// itself is kept in `images`. Recording changes no bit of what the step computes.
//
// Throws InputError when the step cannot be replayed, naming the operation and the reason. One recording
// at a time in a process.
Recording record(const StepFunction& step, const Tensors& inputs, c10::Device device,
                 BeforeImages& images, Audit* learn, const Audit* known);

}  // namespace reprise::runtime::internal::step
