#include "support/naive_check.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "reprise/check/simulate.h"

namespace reprise::testing {
namespace {

using Names = std::multiset<std::string>;

class Naive {
 public:
  explicit Naive(const Graph& graph) : graph_(graph) {
    for (const Value& value : graph.values) {
      size_[value.id] = value.bytes.count();
      if (value.kind == ValueKind::kInput) inputs_.insert(value.id);
    }
    live_ = inputs_;
    result_.peak = level(live_);
  }

  void step(const Action& action) {
    if (action.kind == ActionKind::kFree) {
      if (live_.count(action.id) == 0 || inputs_.count(action.id) > 0) return refuse();
      live_.erase(action.id);
      return;
    }
    for (const Op& op : graph_.ops) {
      if (op.id != action.id) continue;
      for (const Variant& variant : op.variants) {
        if (variant.name == action.variant) return run(op, variant);
      }
    }
    refuse();
  }

  NaiveResult finish() {
    for (const Op& op : graph_.ops) {
      const int64_t count = std::count(ran_.begin(), ran_.end(), op.id);
      if (is_once(op) && count > 1) refuse();
      if (!in_choice(op) && count == 0) refuse();
    }
    for (const Choice& choice : graph_.choices) check(choice);
    check_order();
    std::set<std::string> expected = inputs_;
    for (const ValueIndex result : graph_.results) expected.insert(graph_.values[result].id);
    if (expected != live_) refuse();
    return result_;
  }

 private:
  void refuse() { result_.valid = false; }
  static bool is_once(const Op& op) { return op.once || op.phase != Phase::kForward; }
  int64_t runs(const Op& op) const { return std::count(ran_.begin(), ran_.end(), op.id); }

  template <class Set>
  int64_t level(const Set& names) const {
    int64_t sum = graph_.fixed.count();
    for (const std::string& name : names) sum += size_.at(name);
    return sum;
  }

  void run(const Op& op, const Variant& variant) {
    const bool first = runs(op) == 0;
    if (first && variant.role == Role::kReplay) refuse();
    if (!first && variant.role == Role::kFirst) refuse();
    ran_.push_back(op.id);
    Names held(live_.begin(), live_.end());
    for (const ValueIndex value : variant.reads) {
      if (live_.count(graph_.values[value].id) == 0) refuse();
    }
    for (const ValueIndex value : variant.consumes) {
      held.erase(graph_.values[value].id);
      live_.erase(graph_.values[value].id);
    }
    for (const auto& [written, read] : variant.reuses) {
      held.erase(graph_.values[read].id);
      live_.erase(graph_.values[read].id);
    }
    for (const ValueIndex value : variant.writes) {
      held.insert(graph_.values[value].id);
      live_.insert(graph_.values[value].id);
    }
    result_.peak = std::max(result_.peak, level(held) + variant.workspace.count());
    result_.time += variant.time.count();
  }

  bool in_choice(const Op& op) const {
    for (const Choice& choice : graph_.choices) {
      for (const auto& realization : choice.realizations) {
        for (const OpIndex member : realization.ops) {
          if (graph_.ops[member].id == op.id) return true;
        }
      }
    }
    return false;
  }

  // All ops of one realization run, and none of the others.
  void check(const Choice& choice) {
    int64_t complete = 0, begun = 0;
    for (const auto& realization : choice.realizations) {
      const auto ran = std::count_if(realization.ops.begin(), realization.ops.end(),
                                     [&](OpIndex op) { return runs(graph_.ops[op]) > 0; });
      if (ran > 0) ++begun;
      if (ran == static_cast<int64_t>(realization.ops.size())) ++complete;
    }
    if (complete != 1 || begun != 1) refuse();
  }

  void check_order() {
    std::vector<std::string> wanted, found;
    for (const Op& op : graph_.ops) {
      if (is_once(op) && runs(op) > 0) wanted.push_back(op.id);
    }
    for (const std::string& id : ran_) {
      for (const Op& op : graph_.ops) {
        if (op.id == id && is_once(op)) found.push_back(id);
      }
    }
    if (wanted != found) refuse();
    check_random_order();
  }

  // The first runs of random ops, as positions in the graph, must rise.
  void check_random_order() {
    std::vector<size_t> drawn;
    std::set<std::string> seen;
    for (const std::string& id : ran_) {
      for (size_t o = 0; o < graph_.ops.size(); ++o) {
        if (graph_.ops[o].id == id && graph_.ops[o].random && seen.insert(id).second) {
          drawn.push_back(o);
        }
      }
    }
    if (!std::is_sorted(drawn.begin(), drawn.end())) refuse();
  }

  const Graph& graph_;
  std::map<std::string, int64_t> size_;
  std::set<std::string> inputs_, live_;
  std::vector<std::string> ran_;
  NaiveResult result_;
};

}  // namespace

NaiveResult naive_check(const Graph& graph, const std::vector<Action>& actions) {
  Naive naive(graph);
  for (const Action& action : actions) naive.step(action);
  return naive.finish();
}

bool naive_accepts(const Graph& graph, const Plan& plan, int64_t budget) {
  const NaiveResult result = naive_check(graph, plan.actions);
  const NaiveResult plain = naive_check(graph, with_frees(graph, plain_runs(graph)));
  const bool has_plan =
      plan.termination == Termination::kOptimal || plan.termination == Termination::kFeasible;
  return result.valid && result.peak <= budget && plan.peak.count() == result.peak &&
         plan.time.count() == result.time && plan.budget.count() >= result.peak &&
         plan.lower_bound.count() <= result.time && (has_plan || plan.actions.empty()) &&
         (plan.termination != Termination::kOptimal || plan.lower_bound.count() == result.time) &&
         plan.baseline.peak.count() == plain.peak && plan.baseline.time.count() == plain.time;
}

Plan claimed_plan(const Graph& graph, const std::vector<Action>& actions) {
  const Timeline timeline = simulate(graph, actions);
  Plan plan;
  plan.problem = {"reprise.graph", graph.name, ""};
  plan.planner = "test";
  plan.budget = plan.peak = timeline.peak;
  plan.time = timeline.time;
  plan.baseline = baseline(graph);
  plan.actions = actions;
  return plan;
}

}  // namespace reprise::testing
