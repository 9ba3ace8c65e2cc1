// Records the leaf operations of one run of a training step.
#pragma once

#include "reprise/runtime/capture.h"
#include "runtime/step/audit.h"
#include "runtime/step/before_images.h"
#include "runtime/step/recording.h"
#include "runtime/step/surroundings.h"

namespace reprise::runtime::internal::step {

// Runs the step once and records it. The run is watched as closely as `scrutiny` says, and `audit`
// gets what shows. `known` is what earlier runs showed; it may be null. `images` get what the step
// writes outside itself. The recording changes no bit of what the step computes. The step runs in
// `surroundings`; null stands for none.
//
// Each hash reads the memory once, on the threads of LibTorch.
//
// Throws InputError when the step cannot be replayed, with the operation and the reason. A process
// makes one recording at a time.
Recording record(const StepFunction& step, const Tensors& inputs, c10::Device device,
                 BeforeImages& images, Scrutiny scrutiny, Audit& audit, const Audit* known,
                 Surroundings* surroundings);

// Returns whether this thread is inside record(), or an AsRecorded lives in it. Layers with kernels
// of their own run as operations then.
bool is_recording();

// While an AsRecorded lives, the function runs the operations that a recording of it has.
class AsRecorded {
 public:
  AsRecorded();
  ~AsRecorded();
  AsRecorded(const AsRecorded&) = delete;
  AsRecorded& operator=(const AsRecorded&) = delete;

 private:
  const bool before_;
};

}  // namespace reprise::runtime::internal::step
