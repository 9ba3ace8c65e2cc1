#include "plan/common/candidates.h"

#include <algorithm>
#include <tuple>

#include "reprise/check/simulate.h"

namespace reprise::internal::common {

Nanos time_of(const Graph& graph, const std::vector<Run>& runs) {
  Nanos time;
  for (const Run& run : runs) {
    time += graph.ops[run.op].variants[run.variant].time;
  }
  return time;
}

std::string peak_op(const Graph& graph, const std::vector<Run>& runs) {
  const std::vector<BoundAction> actions = with_bound_frees(graph, runs);
  const Timeline timeline = simulate(graph, actions);
  // If the initial level is already the peak, the first op is the first that needs it.
  const int64_t at = timeline.peak_action;
  if (graph.ops.empty()) return {};
  if (at < 0) return graph.ops.front().id;
  const BoundAction& action = actions[at];
  return action.kind == ActionKind::kRun ? graph.ops[action.target].id
                                         : graph.values[action.target].id;
}

Nanos least_time(const Chain& chain) {
  Nanos sum = chain.loss.cost.time;
  for (const Stage& stage : chain.stages) {
    std::optional<Nanos> least;
    for (const StageOption& option : stage.options) {
      Nanos time = option.forward.time + option.backward.time;
      if (option.stopped) {  // another run of the stage comes first
        time = std::min(time, stage.forward.time + option.stopped->time + option.backward.time);
      }
      least = least ? std::min(*least, time) : time;
    }
    sum += *least;
  }
  return sum;
}

Nanos least_time(const Graph& graph) {
  std::vector<Nanos> times;
  for (const Op& op : graph.ops) {
    Nanos least = op.variants.front().time;
    for (const Variant& variant : op.variants) least = std::min(least, variant.time);
    times.push_back(least);
  }
  Nanos sum;
  for (const Choice& choice : graph.choices) {
    std::optional<Nanos> least;
    for (const Realization& realization : choice.realizations) {
      Nanos time;
      for (const OpIndex op : realization.ops) time += times[op];
      least = least ? std::min(*least, time) : time;
    }
    for (const Realization& realization : choice.realizations) {
      for (const OpIndex op : realization.ops) times[op] = Nanos(0);
    }
    if (least) sum += *least;
  }
  for (const Nanos time : times) sum += time;
  return sum;
}

void Candidates::consider(std::vector<Run> runs) {
  const Timeline timeline = simulate(graph_, with_bound_frees(graph_, runs));
  Candidate candidate{std::move(runs), timeline.peak, timeline.time};
  points_.push_back({candidate.peak, candidate.peak, candidate.time, Nanos()});
  const auto speed = [](const Candidate& c) { return std::tuple(c.time, c.runs.size(), c.peak); };
  const auto size = [](const Candidate& c) { return std::tuple(c.peak, c.time, c.runs.size()); };
  if (!smallest_ || size(candidate) < size(*smallest_)) smallest_ = candidate;
  if (candidate.peak > budget_) return;
  if (!best_ || speed(candidate) < speed(*best_)) best_ = std::move(candidate);
}

Answer Candidates::answer(Nanos lower_bound, bool all) const {
  Answer answer;
  answer.lower_bound = lower_bound;
  answer.search_memory = Bytes(static_cast<int64_t>(points_.capacity() * sizeof(FrontierPoint)));
  if (best_) {
    answer.set_found(best_->time);
    answer.runs = best_->runs;
  } else if (all && smallest_) {
    answer.termination = Termination::kInfeasible;
    answer.smallest_budget = smallest_->peak;
    answer.blocking_op = peak_op(graph_, smallest_->runs);
  }
  return answer;
}

std::vector<FrontierPoint> Candidates::curve(Nanos lower_bound) const {
  std::vector<FrontierPoint> sorted = points_;
  std::sort(sorted.begin(), sorted.end(), [](const FrontierPoint& a, const FrontierPoint& b) {
    return std::tie(a.budget, a.time) < std::tie(b.budget, b.time);
  });
  std::vector<FrontierPoint> best;
  for (FrontierPoint& point : sorted) {
    if (!best.empty() && point.time >= best.back().time) continue;
    point.lower_bound = lower_bound;
    best.push_back(point);
  }
  return best;
}

}  // namespace reprise::internal::common
