// These are the schedules of the literature, with given cuts or parts that are as even as possible.
// Each part keeps everything, or recomputes itself as a whole where its device has too little
// memory.
//
// | row           | source                                                                    |
// |---------------|---------------------------------------------------------------------------|
// | `gpipe`       | Y. Huang et al., "GPipe", NeurIPS 2019                                    |
// | `1f1b`        | D. Narayanan et al., "PipeDream", SOSP 2019, without its delayed weights: |
// |               | "Memory-efficient pipeline-parallel DNN training", ICML 2021              |
// | `interleaved` | D. Narayanan et al., SC 2021                                              |
// | `zb_h1`       | P. Qi et al., "Zero bubble pipeline parallelism", ICLR 2024               |
//
// Assumes that a device runs one operation at a time, and that weights change once a step. Sums of
// gradients are in the order of the micro-batches, which GPipe's own order is not. No full text of
// the papers was at hand.
//
// Tests: oracle/pipeline_test.cc (times and bytes by every account of plans, budgets and bounds, on
// random problems; closed forms of equal parts), unit/pipeline_test.cc (plans are valid).
#include <algorithm>
#include <string>
#include <vector>

#include "plan/pipeline/bound.h"
#include "plan/pipeline/candidate.h"
#include "plan/pipeline/layout.h"
#include "plan/pipeline/order_rules.h"
#include "plan/pipeline/orders.h"
#include "plan/pipeline/planner.h"
#include "reprise/model/errors.h"

namespace reprise::internal::pipeline {
namespace {

Layout one_part_each(const PipelineProblem& problem) {
  const Layout layout = layout_of(problem.pipeline, problem.options.cuts, 1);
  require_links(problem.pipeline, layout);
  return layout;
}

PipelineAnswer answer_of(const PipelineProblem& problem, const Layout& layout,
                         const BestPlan& best) {
  return best.answer(bound_of(problem.pipeline, layout, least_times(problem.pipeline)));
}

}  // namespace

PipelineAnswer gpipe(const PipelineProblem& problem) {
  const Layout layout = one_part_each(problem);
  BestPlan best(problem);
  try_order(
      problem, layout, [&](const auto&) { return gpipe_order(problem.pipeline, layout); }, best);
  return answer_of(problem, layout, best);
}

PipelineAnswer one_f_one_b(const PipelineProblem& problem) {
  const Layout layout = one_part_each(problem);
  BestPlan best(problem);
  try_order(
      problem, layout, [&](const auto&) { return one_f_one_b_order(problem.pipeline, layout); },
      best);
  return answer_of(problem, layout, best);
}

PipelineAnswer interleaved(const PipelineProblem& problem) {
  const Layout layout =
      layout_of(problem.pipeline, problem.options.cuts, problem.options.parts_per_device);
  require_links(problem.pipeline, layout);
  BestPlan best(problem);
  // The last group of micro-batches may be smaller than the others. More forwards before the first
  // backward then keep devices from waiting for each other; with all of them first, none does.
  const int64_t most = problem.pipeline.micro_batches * static_cast<int64_t>(layout.parts());
  for (int64_t extra = 0; extra <= 2 * most; extra = 2 * extra + 1) {
    const auto make = [&](const auto&) {
      return interleaved_order(problem.pipeline, layout, extra);
    };
    if (try_order(problem, layout, make, best)) break;
  }
  return answer_of(problem, layout, best);
}

PipelineAnswer zero_bubble(const PipelineProblem& problem) {
  const Pipeline& pipeline = problem.pipeline;
  if (!has_weight_parts(pipeline)) {
    throw InputError(
        "zb_h1 runs weight gradients apart from the rest of the backward, and no stage of this "
        "pipeline says what its weight gradients cost (weight_part); take 1f1b");
  }
  const Layout layout = one_part_each(problem);
  BestPlan best(problem);
  // The paper has as many micro-batches in flight at each part as there are parts. Where memory is too
  // small for so many, a part has fewer in flight, down to those of 1F1B.
  for (const OrderRule& rule : zero_bubble_rules(layout.parts())) {
    const auto make = [&](const std::vector<PartPlan>& plans) {
      return order_of(rule, pipeline, layout, plans);
    };
    try_order(problem, layout, make, best);
  }
  return answer_of(problem, layout, best);
}

}  // namespace reprise::internal::pipeline
