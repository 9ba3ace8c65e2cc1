// Makes everything that a replay needs from a step function. Each step of the capture takes values
// and returns values.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "reprise/runtime/capture.h"
#include "runtime/distributed/ranks.h"
#include "runtime/graph/averager.h"
#include "runtime/graph/capture_time.h"
#include "runtime/graph/costs.h"
#include "runtime/graph/lower.h"
#include "runtime/graph/updater.h"
#include "runtime/rewrite/alternative.h"
#include "runtime/step/audit.h"

namespace reprise::runtime::internal::graph {

class SharingRanks;  // shared_parts.h

// A StepProgram is a captured step, rewritten, measured and lowered. Its parts refer to each other
// by position, so a program may be moved. Kernels are self-contained but for those of updates and
// buckets, which share ownership of the updater and the averager.
struct StepProgram {
  rewrite::RewrittenStep step;
  WorkCosts costs;
  bool estimated = false;            // whether the costs come from steps of other shapes
  bool on_stand_ins = false;         // whether the recording and the costs are of stand-ins
  std::vector<int64_t> state_bytes;  // by update: state that the optimizer makes at its first step
  std::vector<int64_t> movable_bytes;  // by update: the part of it that may lie in another memory
  LoweredStep lowered;
  // By op of a shard: the workspace on this rank. The graph has that of the rank that needs most.
  std::vector<std::pair<OpIndex, Bytes>> own_workspaces;
  std::shared_ptr<Updater> updater;  // runs `step.updates`
  CacheUse cache = {};
  std::shared_ptr<Averager> averager = {};  // runs `step.buckets`; null without a process group
  std::shared_ptr<const SharingRanks> sharers = {};  // that share out its work; null if none do
  Machine devices = {};  // as measured; the device alone without CaptureOptions::other_devices
  Machine link = {};     // as measured (link.h); the device alone without a process group
};

// Returns the device of the first input that is defined. Throws InputError if there is none.
c10::Device device_of(const Tensors& inputs);

// Returns the parameters of the modules and of the optimizer that the options name.
std::vector<at::Tensor> parameters_of(const CaptureOptions& options);

// Observes the step on `sample`, rewrites, measures and lowers it. Parameters, gradients, buffers
// and the random state are left as they were. `ranks` is null without a process group. Throws what
// capture() throws.
StepProgram make_step_program(const StepFunction& step, const Tensors& sample,
                              const CaptureOptions& options,
                              const std::shared_ptr<distributed::Ranks>& ranks);

// A LearnedStep is what one step of the training has shown.
struct LearnedStep {
  step::Recording recording;
  CaptureTime most;
  bool complete = false;  // The recording has all writes. Else another run has to be recorded.
  // The number of values that were evicted during the run; nothing if there was no budget.
  std::optional<int64_t> evictions = {};
};

// Runs the step once, as a step of the training, and records it within the options' budget. `known`
// are the writes that no schema declares; those that show are added. Throws InputError behind the run
// if it cannot be replayed, and what the step throws.
LearnedStep learn_step(const StepFunction& step, const Tensors& inputs,
                       const CaptureOptions& options, step::Scrutiny scrutiny, step::Audit& known);

// Makes the program of a recording, as make_step_program() does. If two of the `known` programs are of
// the same step on other shapes, their costs are used, and nothing is measured.
StepProgram program_of(LearnedStep learned, const Tensors& inputs, const CaptureOptions& options,
                       const std::vector<const StepProgram*>& known);

}  // namespace reprise::runtime::internal::graph
