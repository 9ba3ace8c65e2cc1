// Measures what the two halves of a stage's backward cost (split_backward.h).
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "reprise/model/chain.h"
#include "reprise/model/pipeline.h"
#include "runtime/chain/run_times.h"
#include "runtime/chain/stage_runner.h"
#include "runtime/state/park.h"

namespace reprise::runtime::internal::chain {

// A MeasuredSplit says whether the backward of a stage can be split.
struct MeasuredSplit {
  std::optional<WeightPart> part = {};
  std::string why_not = {};        // empty for a stage without parameters, too
  Bytes output_in_workspace = {};  // as in PipelineStage
};

struct Splitting {
  bool measured = false;
  // Called after an exception that is not handed on. An interpreter may hold it, too.
  std::function<void()> forget_error = {};
};

struct SplitSubject {
  size_t number = 0;  // of the stage
  const PreparedStage& stage;
  const std::vector<at::Tensor>& parameters;
  c10::Device device;
  const state::Parked& input;
  const state::Parked& gradient;  // of its outputs
  // Whole backwards are measured, and the bytes of the gradients that they make.
  const reprise::Stage& row;
  const std::vector<SavedForm>& saved_form;  // by option
  Bytes input_gradient = {}, weight_gradient = {};
};

// The first option decides. Others can be split if that has the same bytes. Those that make saved
// tensors again are never split, because each half would make them. `again()` brings the random
// state back before a run.
MeasuredSplit measure_split(const SplitSubject& subject, RunTimes& times,
                            const std::function<void()>& again,
                            const std::function<void()>& forget_error);

// Makes the times of the halves fit those of the whole: both do all of its work, and the second one
// is not longer. What was measured otherwise is the noise of the machine.
void fit_times(const reprise::Stage& row, WeightPart& part);

}  // namespace reprise::runtime::internal::chain
