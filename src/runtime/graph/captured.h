// A recorded step with everything that is made of it.
#pragma once

#include "runtime/state/value_keeper.h"
#include "runtime/graph/lower.h"
#include "runtime/step/circumstances.h"
#include "runtime/graph/meter.h"
#include "runtime/graph/replay.h"
#include "runtime/graph/updater.h"
#include "reprise/runtime/capture.h"

namespace reprise::runtime::internal::graph {

// Throws InputError when there is none.
c10::Device device_of(const Tensors& inputs);

// What the step writes outside itself, to undo a step that fails.
class Effects {
 public:
  explicit Effects(const step::Recording& recording);
  void save();  // what is there now; the data of a tensor may be other than at capture
  void restore() const { kept_.restore(); }

 private:
  Tensors tensors_, memory_;
  state::ValueKeeper kept_;
};

// It stays where it is: the replay refers to it.
struct Captured {
  step::Circumstances circumstances;
  step::Recording recording;
  step::Works works;
  Updater updater;
  rewrite::Alternatives alternatives;
  WorkCosts costs;
  LoweredStep lowered;
  Replay replay;
  Effects effects;
  Tensors maybe_uncounted;     // externals that the allocator may not have counted
  step::Residents residents;

  // Runs the step, measures every operation. Throws what capture() throws.
  Captured(const StepFunction& step, const Tensors& sample, const CaptureOptions& options);
  Captured(const Captured&) = delete;
  Captured& operator=(const Captured&) = delete;
};

}  // namespace reprise::runtime::internal::graph
