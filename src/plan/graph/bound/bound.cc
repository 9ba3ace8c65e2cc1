// This is a bound on every valid plan from what has to be in memory at single instants.
//
// While one op runs, each value that is needed later is live, at a price per byte; or it is made
// again, at the price of its maker's time, and what its maker reads is needed in turn. At a fixed
// price of memory the cheapest division is a minimum cut (J. C. Picard, "Maximal closure of a graph
// and applications to combinatorial problems", Management Science 22(11), 1976). The best price is
// found by Lagrangian relaxation (M. L. Fisher, "The Lagrangian relaxation method for solving
// integer programming problems", Management Science 27(1), 1981). docs/planners/graph_bound.md
// states what is claimed, and proves it for every plan.
//
// | symbol        | here                                                                  |
// |---------------|-----------------------------------------------------------------------|
// | b             | the op of the instant; every plan runs it exactly once, or it is an   |
// |               | op of a realization, and the least of the realizations holds (Moment) |
// | lambda        | price / unit in Instant::solve: nanoseconds per byte                  |
// | L, R          | values that are live while b runs, and values that are made again     |
// | B - G_b       | room in Instant::least_time: budget without what b itself holds       |
//
// Complexity: one op takes some dozens of cuts on about two nodes a value. A graph with few
// instants has all of them looked at. A larger graph is divided into BoundParams::most_instants
// stretches; of each stretch the instant is looked at where plain training holds most, and then
// others around the best one.
//
// Assumptions: none beyond validate(). The claim covers variants, roles, choices, ops that run
// once, reuse and consume. A value that is not known to be needed is not counted.
//
// Tests: oracle/graph_bound_test.cc (never above exhaustive search, at every budget; monotone in
// the budget; scales), unit/max_flow_test.cc.
#include "plan/graph/bound/bound.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "plan/common/graph_facts.h"
#include "plan/graph/bound/instant.h"
#include "reprise/check/simulate.h"
#include "reprise/model/plan.h"

namespace reprise::internal::bound {

using common::can_be_first;
using common::GraphFacts;
using common::SearchControl;
using common::takes;

namespace {

class Bounding {
 public:
  Bounding(const Graph& graph, Bytes budget, SearchControl& control, const BoundParams& params)
      : graph_(graph),
        facts_(graph),
        budget_(budget.count()),
        control_(control),
        params_(params),
        moments_(moments_of(facts_)) {
    best_.time = facts_.least_time;
    Bytes always = graph.fixed;
    for (const Value& value : graph.values) {
      if (value.kind == ValueKind::kInput) always += value.bytes;
    }
    const auto count = static_cast<OpIndex>(graph.ops.size());
    for (OpIndex op = 0; op < count; ++op) {
      if (facts_.certain[op]) consider_own_need(op, always);
    }
  }

  GraphBound run() {
    if (!params_.use.instants) return std::move(best_);
    looked_at_.assign(moments_.size(), 0);
    times_.assign(moments_.size(), 0);
    size_t stride = 1;
    if (params_.use.few_instants) {
      while (moments_.size() / stride > params_.most_instants) stride *= 2;
    }
    const std::vector<Bytes> levels = levels_of_plain_training();
    for (size_t k = 0; k < moments_.size(); k += stride) {
      const auto first = levels.begin() + static_cast<std::ptrdiff_t>(k);
      const auto last = first + static_cast<std::ptrdiff_t>(std::min(stride, levels.size() - k));
      look_at(static_cast<size_t>(std::max_element(first, last) - levels.begin()));
    }
    for (; stride > 1; stride /= 2) {
      const size_t middle = best_at_;
      if (middle >= stride / 2) look_at(middle - stride / 2);
      if (middle + stride / 2 < moments_.size()) look_at(middle + stride / 2);
    }
    find_promising();
    return std::move(best_);
  }

 private:
  // Notes the instant with the highest bound of each stretch.
  void find_promising() {
    const size_t stretch = (moments_.size() + params_.promising - 1) / params_.promising;
    for (size_t begin = 0; begin < moments_.size(); begin += stretch) {
      const size_t end = std::min(moments_.size(), begin + stretch);
      const auto first = times_.begin() + static_cast<std::ptrdiff_t>(begin);
      const auto last = times_.begin() + static_cast<std::ptrdiff_t>(end);
      const auto highest = std::max_element(first, last);
      if (*highest > 0) best_.promising.push_back(moments_[highest - times_.begin()]);
    }
  }

  // By moment: the bytes that plain training holds while its op runs.
  std::vector<Bytes> levels_of_plain_training() const {
    const std::vector<Run> runs = plain_runs(graph_);
    const std::vector<BoundAction> actions = with_bound_frees(graph_, runs);
    const Timeline timeline = simulate(graph_, actions);
    std::vector<Bytes> by_op(graph_.ops.size()), levels;
    auto run = runs.begin();
    for (size_t k = 0; k < actions.size(); ++k) {
      if (actions[k].kind == ActionKind::kRun) by_op[(run++)->op] = timeline.steps[k].during;
    }
    for (const Moment& moment : moments_) {
      Bytes level;
      for (const Moment::Realization& realization : moment.realizations) {
        for (const OpIndex op : realization.ops) level = std::max(level, by_op[op]);
      }
      levels.push_back(level);
    }
    return levels;
  }

  // Lemma 11: what is always held, what the op reads and does not take, what it writes, and its
  // workspace.
  void consider_own_need(OpIndex op, Bytes always) {
    std::optional<Bytes> least;
    for (const Variant& variant : graph_.ops[op].variants) {
      if (!can_be_first(variant)) continue;
      Bytes need = always + variant.workspace;
      for (const ValueIndex value : variant.writes) need += graph_.values[value].bytes;
      for (const ValueIndex value : variant.reads) {
        const bool counted = graph_.values[value].kind == ValueKind::kInput;
        if (!counted && !takes(variant, value)) need += graph_.values[value].bytes;
      }
      least = least ? std::min(*least, need) : need;
    }
    if (least) raise_peak(*least, op);
  }

  void raise_peak(Bytes peak, OpIndex op) {
    if (peak <= best_.least_peak) return;
    best_.least_peak = peak;
    best_.blocking_op = op;
  }

  void look_at(size_t k) {
    if (looked_at_[k] || control_.out_of_time()) return;
    looked_at_[k] = 1;
    const Moment& moment = moments_[k];
    const std::optional<MomentPeak> peak = peak_of_moment(facts_, moment);
    if (!peak) return;  // no plan has this moment
    raise_peak(Bytes(peak->peak), peak->op);
    std::optional<MomentCost> cost = cost_of_moment(facts_, moment, budget_);
    if (!cost) return;
    times_[k] = cost->time;
    if (cost->time > times_[best_at_]) best_at_ = k;
    best_.time = std::max(best_.time, time_with(facts_, cost->time));
    // The starts ask what to keep, and they ask it at an op that every plan has.
    if (moment.is_choice || cost->time <= time_at_instant_) return;
    time_at_instant_ = cost->time;
    best_.instant = cost->op;
    best_.kept = std::move(cost->kept);
  }

  const Graph& graph_;
  const GraphFacts facts_;
  const int64_t budget_;
  SearchControl& control_;
  const BoundParams& params_;
  const std::vector<Moment> moments_;
  std::vector<char> looked_at_;
  std::vector<int64_t> times_;  // by moment: time beyond facts_.least_time
  size_t best_at_ = 0;
  int64_t time_at_instant_ = 0;  // the time at best_.instant
  GraphBound best_;
};

}  // namespace

GraphBound bound_graph(const Graph& graph, Bytes budget, SearchControl& control,
                       const BoundParams& params) {
  return Bounding(graph, budget, control, params).run();
}

}  // namespace reprise::internal::bound
