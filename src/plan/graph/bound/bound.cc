// A bound on every valid plan from what has to be in memory at single instants.
//
// The idea is the cut of recomputation graphs with honest weights: at the moment of one op, each
// value that is needed later is live, at a price per byte, or made again, at the price of its
// maker's time, and its maker's inputs are needed in turn. For a fixed price of memory the cheapest
// way is a minimum cut (J. C. Picard, "Maximal closure of a graph and applications to combinatorial
// problems", Management Science 22(11), 1976); the best price is found by Lagrangian relaxation
// (M. L. Fisher, "The Lagrangian relaxation method for solving integer programming problems",
// Management Science 27(1), 1981). What is claimed, and why it holds for every plan, is written
// above Instant in graph/bound/instant.h.
//
// | symbol        | here                                                                  |
// |---------------|-----------------------------------------------------------------------|
// | b             | the op of the instant: runs exactly once in every plan; of a choice   |
// |               | one of the ops of each realization, and the least holds (Moment)      |
// | lambda        | price / unit in Instant::solve: nanoseconds per byte                  |
// | L, R          | values that are live while b runs, and values that are made again     |
// | B - G_b       | room in Instant::least_time: budget without what b itself holds       |
//
// Complexity: one op takes some dozens of cuts on about two nodes a value. All instants up to
// kFewInstants, beyond that those of as many stretches where plain training holds most, then others around the best.
//
// Assumptions: none beyond validate(). Variants, roles, choices, ops that run once, reuse and
// consume are all in the claim; what is not known to be needed is not counted.
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

using common::GraphFacts;
using common::SearchControl;
using common::can_be_first;
using common::takes;

namespace {

constexpr size_t kFewInstants = 64, kPromisingInstants = 24;

class Bounding {
 public:
  Bounding(const Graph& graph, Bytes budget, SearchControl& control)
      : graph_(graph),
        facts_(graph),
        budget_(budget.count()),
        control_(control),
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
    looked_at_.assign(moments_.size(), 0);
    times_.assign(moments_.size(), 0);
    size_t stride = 1;
    while (moments_.size() / stride > kFewInstants) stride *= 2;
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
  // Of each stretch the instant with the highest bound.
  void find_promising() {
    const size_t stretch = (moments_.size() + kPromisingInstants - 1) / kPromisingInstants;
    for (size_t begin = 0; begin < moments_.size(); begin += stretch) {
      const size_t end = std::min(moments_.size(), begin + stretch);
      const auto first = times_.begin() + static_cast<std::ptrdiff_t>(begin);
      const auto last = times_.begin() + static_cast<std::ptrdiff_t>(end);
      const auto highest = std::max_element(first, last);
      if (*highest > 0)
        best_.promising.push_back(moments_[static_cast<size_t>(highest - times_.begin())]);
    }
  }

  // While the op of each instant runs.
  std::vector<Bytes> levels_of_plain_training() const {
    const std::vector<Run> runs = plain_runs(graph_);
    const std::vector<Action> actions = with_frees(graph_, runs);
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

  // What is always there, what the op reads and does not take, what it writes, its workspace.
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
    if (!peak) return;  // no plan has it
    raise_peak(Bytes(peak->peak), peak->op);
    std::optional<MomentCost> cost = cost_of_moment(facts_, moment, budget_);
    if (!cost) return;
    times_[k] = cost->time;
    if (cost->time > times_[best_at_]) best_at_ = k;
    best_.time = std::max(best_.time, time_with(facts_, cost->time));
    // What to keep is asked where every plan has the same op.
    if (moment.is_choice || cost->time <= time_at_instant_) return;
    time_at_instant_ = cost->time;
    best_.instant = cost->op;
    best_.kept = std::move(cost->kept);
  }

  const Graph& graph_;
  const GraphFacts facts_;
  const int64_t budget_;
  SearchControl& control_;
  const std::vector<Moment> moments_;
  std::vector<char> looked_at_;
  std::vector<int64_t> times_;  // beyond facts_.least_time, by moment
  size_t best_at_ = 0;
  int64_t time_at_instant_ = 0;  // of best_.instant
  GraphBound best_;
};

}  // namespace

GraphBound bound_graph(const Graph& graph, Bytes budget, SearchControl& control) {
  return Bounding(graph, budget, control).run();
}

}  // namespace reprise::internal::bound
