// Chooses cuts and recomputation together: which stages lie on which device, and how each part
// trades its memory for time, so that the step is as fast as possible.
//
// | symbol   | identifier             | meaning                                               |
// |----------|------------------------|-------------------------------------------------------|
// | k_s      | PartCosts::in_flight() | micro-batches in flight at part s                     |
// | M_s      | PartCosts::room()      | bytes of device s without fixed ones and messages     |
// | b(s,i,j) | PartCosts::way()       | the fastest way of stages i..j-1 on device s with     |
// |          |                        | (k_s - 1) S + P <= M_s                                |
//
// A way of a part is found by an exact recurrence with two budgets (part_plans.h); this is our own,
// on top of that of chain.cc. Orders are those of order_rules.h. Cuts come from one of
// two lists (cut_lists.h): all of them where they are few, or a program over parts for each cap on
// the slowest part, as PipeDream's (Narayanan et al., SOSP 2019) and AdaPipe's (Sun et al., ASPLOS
// 2024) are. Single cuts move after that. Each candidate
// counts with the time that the simulator gives it, never with a formula. The answers of the other
// rows are candidates, too, so that this planner is never worse than they are.
//
// Assumes: parts follow the devices in their order. Does not handle: parts in another order, several of
// them on a device beyond those of `interleaved`, offloading.
//
// Tests: oracle/joint_pipeline_test.cc (never worse than any row; against all cuts; bounds).
#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "plan/pipeline/bound.h"
#include "plan/pipeline/candidate.h"
#include "plan/pipeline/cut_lists.h"
#include "plan/pipeline/layout.h"
#include "plan/pipeline/part_costs.h"
#include "plan/pipeline/planner.h"
#include "plan/pipeline/try_cuts.h"
#include "reprise/model/errors.h"

namespace reprise::internal::pipeline {
namespace {

// Asks the other rows. zb_h1 refuses problems without weight parts, and interleaved those without a
// link from the last device to the first.
void consider_rows(const PipelineProblem& problem, const common::SearchControl& control,
                   BestPlan& best) {
  PipelineOptions options = problem.options;
  for (const auto row : {one_f_one_b, gpipe, cheapest_stages, adapipe, zero_bubble, interleaved}) {
    if (best.tried() && control.out_of_time()) return;
    options.time_limit = control.time_left();
    try {
      best.consider(row({problem.pipeline, problem.budgets, options}));
    } catch (const InputError&) {
      continue;
    }
  }
}

// Asks the other rows again, with the cuts of the best plan. Where links are slow, their orders, which
// have other micro-batches in flight, may be faster than those of order_rules.h.
void consider_rows_with_cuts_of_best(const PipelineProblem& problem,
                                     const common::SearchControl& control, BestPlan& best) {
  while (best.found() && best.plan()->parts.size() == problem.pipeline.devices.size()) {
    const Nanos before = best.time();
    PipelineOptions options = problem.options;
    for (size_t q = 1; q < best.plan()->parts.size(); ++q) {
      options.cuts.push_back(best.plan()->parts[q].first_stage);
    }
    consider_rows({problem.pipeline, problem.budgets, options}, control, best);
    if (best.time() >= before) return;
  }
}

void search_cuts(PartCosts& costs, common::SearchControl& control, BestPlan& best) {
  for (const OrderRule& rule : all_rules(costs.pipeline(), costs.parts())) {
    costs.set_rule(rule);
    for (const CutChoice& choice : list_cuts(costs, control)) {
      if (control.out_of_time()) return;
      if (best.found() && choice.least >= best.time()) break;
      try_cuts(costs, choice.cuts, best);
      control.report(-1);
    }
  }
}

// Moves one cut at a time as long as that makes the best plan faster.
void move_cuts(PartCosts& costs, const common::SearchControl& control, BestPlan& best) {
  if (!best.found() || best.plan()->parts.size() != costs.parts()) return;
  std::vector<size_t> cuts;
  for (const PipelinePart& part : best.plan()->parts) {
    cuts.push_back(static_cast<size_t>(part.first_stage));
  }
  cuts.push_back(costs.stages());
  const auto improves = [&](const std::vector<size_t>& moved) {
    const Nanos before = best.time();
    for (const OrderRule& rule : all_rules(costs.pipeline(), costs.parts())) {
      costs.set_rule(rule);
      if (costs.least_time(moved) < best.time()) try_cuts(costs, moved, best);
    }
    return best.time() < before;
  };
  for (bool better = true; better && !control.out_of_time();) {
    better = false;
    for (size_t q = 1; q < costs.parts() && !better; ++q) {
      for (const int step : {-1, 1}) {
        std::vector<size_t> moved = cuts;
        moved[q] += static_cast<size_t>(step);
        if (moved[q] <= moved[q - 1] || moved[q] >= moved[q + 1] || !improves(moved)) continue;
        cuts = std::move(moved);
        better = true;
        break;
      }
    }
  }
}

}  // namespace

PipelineAnswer joint(const PipelineProblem& problem) {
  require_links(problem.pipeline, layout_of(problem.pipeline, problem.options.cuts, 1));
  common::SearchControl control = control_of(problem, "pipeline");
  BestPlan best(problem);
  consider_rows(problem, control, best);
  PartCosts costs(problem, Pieces::kAll, control);
  if (costs.complete()) {
    search_cuts(costs, control, best);
    if (costs.given_cuts().empty()) {
      move_cuts(costs, control, best);
      consider_rows_with_cuts_of_best(problem, control, best);
    }
  }
  const bool several = best.found() && best.plan()->parts.size() > problem.pipeline.devices.size();
  PipelineAnswer answer = best.answer(several ? bound_of_all(problem.pipeline) : costs.bound());
  if (several) answer.schedule_class = "all";
  if (!best.found()) {
    answer.lower_bound = Nanos(0);
    if (control.out_of_time()) answer.termination = Termination::kTimeLimit;
  }
  answer.search_memory = costs.plans().memory();
  return answer;
}

}  // namespace reprise::internal::pipeline
