// This is a captured step that is ready to run: its program, and what it finds and changes outside
// itself.
#pragma once

#include <memory>

#include "reprise/runtime/capture.h"
#include "runtime/graph/replay.h"
#include "runtime/graph/step_program.h"
#include "runtime/state/value_keeper.h"
#include "runtime/step/circumstances.h"

namespace reprise::runtime::internal::graph {

// Effects are what the step writes outside itself. They are saved before a run, to undo a run that
// fails.
class Effects {
 public:
  explicit Effects(const step::Recording& recording);
  // Saves the bytes that are there now. A tensor may have other data than at capture.
  void save();
  void restore() const { kept_.restore(); }

 private:
  Tensors tensors_, memory_;
  state::ValueKeeper kept_;
};

// A Captured stays where it is, because the replay refers to the program, which nothing changes any
// more.
struct Captured {
  step::Circumstances circumstances;
  StepProgram program;
  Replay replay;
  Effects effects;
  Tensors maybe_uncounted;  // externals that the allocator may not have counted
  step::Residents residents;

  // `circumstances` must be from before the step was observed. The constructor begins to keep room
  // for the optimizer's state.
  Captured(step::Circumstances circumstances, StepProgram program);
  Captured(const Captured&) = delete;
  Captured& operator=(const Captured&) = delete;
};

// Captures the step. `ranks` is null without a process group; all ranks then agree on the step, its
// numbers and their link. Throws what capture() throws.
std::unique_ptr<Captured> capture_step(const StepFunction& step, const Tensors& sample,
                                       const CaptureOptions& options,
                                       const std::shared_ptr<distributed::Ranks>& ranks);

}  // namespace reprise::runtime::internal::graph
