// This is a captured step that is ready to run: its program, and what it finds and changes outside
// itself.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>

#include "reprise/runtime/capture.h"
#include "runtime/graph/replay.h"
#include "runtime/graph/step_program.h"
#include "runtime/state/value_keeper.h"
#include "runtime/step/circumstances.h"
#include "runtime/step/storage_bytes.h"
#include "runtime/step/work.h"

namespace reprise::runtime::internal::graph {

// Effects are what the step writes outside itself. They are saved before a run, to undo a run that
// fails. A step that writes parameters, or gradients from before it, has large ones: they are only
// saved while the function runs beside the plan (save_before()), and dropped behind the run.
class Effects {
 public:
  explicit Effects(const step::Recording& recording);
  // Saves the bytes that are there now, of parameters and gradients none. A tensor may have other data
  // than at capture. Inputs are those of the run.
  void save(const Tensors& inputs);
  // Saves what the work writes, if that is not saved yet.
  void save_before(const step::Work& work);
  void restore(const Tensors& inputs) const;
  // Says whether all of these externals can be restored.
  bool has(const std::set<int32_t>& written) const;

 private:
  Tensors tensors_, memory_;
  state::ValueKeeper kept_;
  // By external, if the step writes such: a tensor that lies there, and its bytes.
  std::map<int32_t, at::Tensor> parameters_;
  std::map<int32_t, step::HostBytes> images_;
  std::map<int32_t, int32_t> inputs_;  // by external: the input, if it is one
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
  int64_t sample_bytes = 0;  // of the inputs that the graph was captured with

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
