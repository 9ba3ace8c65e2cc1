// Recomputes the stages that give the most bytes for the least time, the same ones in every part.
//
// This is the recomputation of T. Yuan et al., "Accelerating the training of large language models
// using efficient activation rematerialization and optimal hybrid parallelism" (USENIX ATC 2024):
// "compute-memory balanced checkpointing" makes cheap layers again, such as norms and activations,
// and keeps the rest. Their offloading is not here. No full text was at hand: the order of the stages
// by time a byte is ours, and so is the smallest number of them that fits.
//
// Tests: oracle/joint_pipeline_test.cc.
#include <algorithm>
#include <utility>
#include <vector>

#include "plan/pipeline/bound.h"
#include "plan/pipeline/candidate.h"
#include "plan/pipeline/layout.h"
#include "plan/pipeline/messages.h"
#include "plan/pipeline/orders.h"
#include "plan/pipeline/planner.h"

namespace reprise::internal::pipeline {
namespace {

std::vector<size_t> by_time_a_byte(const Pipeline& pipeline) {
  std::vector<size_t> order(pipeline.chain.stages.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::stable_sort(order, [&](size_t a, size_t b) {
    const Stage &x = pipeline.chain.stages[a], &y = pipeline.chain.stages[b];
    __extension__ using Wide = __int128;
    return Wide{x.forward.time.count()} * y.options.front().saved.count() <
           Wide{y.forward.time.count()} * x.options.front().saved.count();
  });
  return order;
}

// Keeps a part but for these stages, whose forwards run again just before their backwards.
PartPlan plan_without(const Pipeline& pipeline, size_t first, size_t end,
                      const std::vector<char>& again) {
  PartPlan plan = keep_plan(pipeline, first, end);
  std::vector<PartRun> backward;
  auto next = plan.backward.begin();
  if (end == pipeline.chain.stages.size()) backward.push_back(*next++);  // the loss
  for (size_t i = end; i-- > first;) {
    PartRun& run = plan.forward[i - first];
    if (again[i]) {
      backward.push_back(run);
      run.variant = "fast";
    }
    backward.push_back(*next++);
  }
  plan.backward = std::move(backward);
  return plan;
}

}  // namespace

PipelineAnswer cheapest_stages(const PipelineProblem& problem) {
  const Pipeline& pipeline = problem.pipeline;
  const Layout layout = layout_of(pipeline, problem.options.cuts, 1);
  require_links(pipeline, layout);
  const std::vector<size_t> order = by_time_a_byte(pipeline);
  std::vector<char> again(order.size(), 0);
  BestPlan best(problem);
  for (size_t count = 0; count <= order.size() && !best.found(); ++count) {
    if (count > 0) again[order[count - 1]] = 1;
    std::vector<PartPlan> plans;
    for (size_t q = 0; q < layout.parts(); ++q) {
      plans.push_back(plan_without(pipeline, layout.cuts[q], layout.cuts[q + 1], again));
    }
    for (const Slack& slack : {Slack{1, 1}, Slack{2, 2}, Slack{0, 1}}) {
      best.consider(draft_plan(pipeline, layout, plans,
                               with_messages(layout, one_f_one_b_order(pipeline, layout), slack)));
    }
  }
  return best.answer(bound_of(pipeline, layout, least_times(pipeline)));
}

}  // namespace reprise::internal::pipeline
