// Measures the times of the options of a stage: the kept forward and its backward.
#pragma once

#include <functional>
#include <vector>

#include "reprise/model/chain.h"
#include "runtime/chain/run_times.h"
#include "runtime/chain/stage_runner.h"
#include "runtime/state/park.h"

namespace reprise::runtime::internal::chain {

// OptionRuns says what the runs need.
struct OptionRuns {
  size_t number = 0;  // of the stage
  const PreparedStage& stage;
  const std::vector<at::Tensor>& parameters;
  c10::Device device;
  const state::Parked& input;
  const state::Parked& gradient;             // of its outputs
  const std::vector<SavedForm>& saved_form;  // by option
  const std::vector<NotedCalls>& noted;      // by option
};

// Sets the times of the options. `again()` brings the random state back before a run, and `sums()`
// gives the running sums of gradients that the stage's backward adds to.
void measure_options(const OptionRuns& runs, RunTimes& times, const std::function<void()>& again,
                     const std::function<GradientBook()>& sums, std::vector<StageOption>& options);

}  // namespace reprise::runtime::internal::chain
