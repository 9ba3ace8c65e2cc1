// AdaPipe chooses which stages each part computes again, and the cuts, by a closed formula for
// 1F1B.
//
// Z. Sun et al., "AdaPipe: optimizing pipeline parallelism with adaptive recomputation and
// partitioning", ASPLOS 2024. Two levels: inside a part, the stages that are computed again are those
// for which the part is fastest in its memory; over the parts, a program finds the cuts with the least
// W + (m - p) M + E.
//
// | symbol | identifier        | meaning                                                              |
// |--------|-------------------|----------------------------------------------------------------------|
// | m, p   |                   | micro-batches, parts                                                 |
// | W      | Tail::warm_up     | the time until the first part begins its first backward              |
// | E      | Tail::end         | the time that the last backward takes from the last part to this one |
// | M      | Tail::slowest     | the largest forward and backward time of a part from there on        |
//
// The formula has no messages. The plan is simulated all the same, and the better of it and of 1F1B is
// the answer. The program keeps one tail for each part and first stage, as the paper does, so that it
// is not exact even for its formula. No full text was at hand: the recurrences of W and E are ours.
//
// O(parts * stages^2). Tests: oracle/joint_pipeline_test.cc.
#include <algorithm>
#include <optional>
#include <vector>

#include "plan/pipeline/bound.h"
#include "plan/pipeline/candidate.h"
#include "plan/pipeline/part_costs.h"
#include "plan/pipeline/planner.h"
#include "plan/pipeline/try_cuts.h"

namespace reprise::internal::pipeline {
namespace {

// A Tail is the parts from one on, with the cut behind that part.
struct Tail {
  Nanos total = kNoTime, warm_up, end, slowest, forward, backward;
  size_t next = 0;
};

class FormulaCuts {
 public:
  explicit FormulaCuts(PartCosts& costs)
      : costs_(costs),
        parts_(costs.parts()),
        stages_(costs.stages()),
        steady_(std::max<int64_t>(
            0, costs.pipeline().micro_batches - static_cast<int64_t>(costs.parts()))) {}

  // Returns no cuts if no parts fit.
  std::vector<size_t> find() {
    tails_.assign(parts_ + 1, std::vector<Tail>(stages_ + 1));
    for (size_t q = parts_; q-- > 0;) {
      for (size_t f = q; f < stages_; ++f) {
        for (size_t e = f + 1; e <= stages_; ++e) extend(q, f, e);
      }
    }
    if (tails_[0][0].total == kNoTime) return {};
    std::vector<size_t> cuts{0};
    for (size_t q = 0; q < parts_; ++q) cuts.push_back(tails_[q][cuts.back()].next);
    return cuts;
  }

 private:
  void extend(size_t q, size_t f, size_t e) {
    const bool last = q + 1 == parts_;
    const std::vector<size_t>& given = costs_.given_cuts();
    if (last != (e == stages_)) return;
    if (!last && tails_[q + 1][e].total == kNoTime) return;
    if (!given.empty() && (f != given[q] || e != given[q + 1])) return;
    const std::optional<Way> way = costs_.way(q, f, e);
    if (!way) return;
    const PartTimes times =
        times_of_plan(costs_.pipeline(), costs_.devices()[q], costs_.plans().plan(f, e, *way));
    Tail tail;
    tail.forward = times.forward;
    tail.backward = times.backward;
    tail.next = e;
    tail.warm_up = tail.forward;
    tail.end = tail.backward;
    tail.slowest = tail.forward + tail.backward;
    if (!last) {
      const Tail& rest = tails_[q + 1][e];
      const auto behind = static_cast<int64_t>(parts_ - q - 1);
      tail.warm_up += std::max(rest.warm_up + rest.backward, tail.forward * behind);
      tail.end += std::max(rest.end + rest.forward, tail.backward * behind);
      tail.slowest = std::max(tail.slowest, rest.slowest);
    }
    tail.total = tail.warm_up + tail.end + tail.slowest * steady_;
    if (tail.total < tails_[q][f].total) tails_[q][f] = tail;
  }

  PartCosts& costs_;
  size_t parts_;
  size_t stages_;
  int64_t steady_;
  std::vector<std::vector<Tail>> tails_;  // by part and first stage
};

Layout layout_of_plan(const Pipeline& pipeline, const PipelinePlan& plan) {
  Layout layout;
  for (const PipelinePart& part : plan.parts) {
    layout.cuts.push_back(static_cast<size_t>(part.first_stage));
    layout.device.push_back(part.device);
  }
  layout.cuts.push_back(pipeline.chain.stages.size());
  return layout;
}

}  // namespace

PipelineAnswer adapipe(const PipelineProblem& problem) {
  const Pipeline& pipeline = problem.pipeline;
  Layout layout = layout_of(pipeline, problem.options.cuts, 1);
  require_links(pipeline, layout);
  BestPlan best(problem);
  common::SearchControl control = control_of(problem, "adapipe");
  PartCosts costs(problem, Pieces::kSingle, control);
  if (costs.complete()) {
    const std::vector<size_t> cuts = FormulaCuts(costs).find();
    if (!cuts.empty()) try_cuts(costs, cuts, best);
  }
  best.consider(one_f_one_b(problem));
  if (best.found()) layout = layout_of_plan(pipeline, *best.plan());
  PipelineAnswer answer = best.answer(bound_of(pipeline, layout, least_times(pipeline)));
  answer.search_memory = costs.plans().memory();
  return answer;
}

}  // namespace reprise::internal::pipeline
