// Records the leaf operations of one run of a training step.
#pragma once

#include "runtime/step/audit.h"
#include "runtime/step/before_images.h"
#include "runtime/step/recording.h"
#include "runtime/step/surroundings.h"
#include "reprise/runtime/capture.h"

namespace reprise::runtime::internal::step {

// Runs the step once and records it. With `learn` it watches all bytes and fills the audit, which
// takes as long as reading every operand twice. Without, `known` is the audit of an earlier run.
// `images` get what the step writes outside itself. The recording changes no bit of what the step
// computes. The step runs in `surroundings`; null stands for none.
//
// Throws InputError when the step cannot be replayed, with the operation and the reason. A process
// makes one recording at a time.
Recording record(const StepFunction& step, const Tensors& inputs, c10::Device device,
                 BeforeImages& images, Audit* learn, const Audit* known,
                 Surroundings* surroundings);

// Whether this thread is inside record().
bool is_recording();

}  // namespace reprise::runtime::internal::step
