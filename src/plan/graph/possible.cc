// An op holds memory while it runs, and every plan holds something beside it. The sum may be above
// the budget with one variant, and below it with another one. The first variant cannot be part of a
// plan. This is known before the search, so the search need not look there and the bound need not
// count on it.
//
// For an op that runs once, the least memory of a run is that of Lemma 9 in
// docs/planners/graph_bound.md. It holds for every plan that runs the op with this variant, so the
// op may be in a choice. For other ops the least memory is what the run itself holds (Lemma 11).
//
// Tests: oracle/graph_bound_test.cc (no plan is lost, at every budget).
#include "plan/graph/possible.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <ranges>
#include <utility>

#include "plan/common/graph_facts.h"
#include "plan/graph/bound/instant.h"
#include "plan/graph/schedule/ledger.h"
#include "plan/graph/starts/starts.h"
#include "reprise/check/simulate.h"
#include "reprise/model/errors.h"

namespace reprise::internal::graph {

using bound::Instant;
using common::can_be_first;
using common::GraphFacts;
using common::runs_once;
using common::SearchControl;
using common::takes;
using schedule::Schedule;
using schedule::ScheduleLedger;
using schedule::ScheduleModel;

namespace {

constexpr size_t kLargeGraph = 2'000;  // ops
constexpr auto kNeverRun = std::numeric_limits<Instant::Amount>::max();

class LeavingOut {
 public:
  LeavingOut(const Graph& graph, Bytes budget, const SearchControl& control)
      : graph_(graph), facts_(graph), budget_(budget.count()), control_(control) {
    always_ = graph.fixed.count();
    for (const Value& value : graph.values) {
      if (value.kind == ValueKind::kInput) always_ += value.bytes.count();
    }
    for (const Op& op : graph.ops) possible_.emplace_back(op.variants.size(), 1);
    beside_.assign(graph.ops.size(), kNeverRun);
    look_at(plain_runs(graph));
    look_at_segments();
    look_at_other_realizations();
  }

  // Finds the variants that are impossible. Returns false if there are none.
  bool look() {
    bool any = false;
    for (size_t o = 0; o < graph_.ops.size() && !control_.out_of_time(); ++o) {
      const Op& op = graph_.ops[o];
      if (op.variants.size() == 1 && facts_.certain[o]) continue;  // a plan without it is none
      any |= !look_at(static_cast<OpIndex>(o));
    }
    while (any && leave_out_readers_of_nothing()) continue;
    return any;
  }

  PossibleGraph rest() const {
    PossibleGraph rest{graph_, {}};
    std::vector<char> dropped(graph_.ops.size(), 0);
    for (size_t c = 0; c < graph_.choices.size(); ++c) {
      auto& realizations = rest.graph.choices[c].realizations;
      for (const bool keep : {false, true}) {  // an op may stand in two realizations
        for (const Realization& realization : graph_.choices[c].realizations) {
          if (is_possible(realization.ops) != keep) continue;
          for (const OpIndex op : realization.ops) dropped[op] = !keep;
        }
      }
      std::erase_if(realizations, [&](const Realization& one) { return !is_possible(one.ops); });
    }
    std::vector<OpIndex> position(graph_.ops.size(), -1);
    rest.graph.ops.clear();
    for (size_t o = 0; o < graph_.ops.size(); ++o) {
      if (dropped[o]) continue;
      position[o] = static_cast<OpIndex>(rest.graph.ops.size());
      Op op = graph_.ops[o];
      op.variants.clear();
      rest.runs.emplace_back();
      for (size_t k = 0; k < possible_[o].size(); ++k) {
        if (!possible_[o][k]) continue;
        op.variants.push_back(graph_.ops[o].variants[k]);
        rest.runs.back().push_back({static_cast<OpIndex>(o), static_cast<int32_t>(k)});
      }
      rest.graph.ops.push_back(std::move(op));
    }
    for (Choice& choice : rest.graph.choices) {
      for (Realization& realization : choice.realizations) {
        for (OpIndex& op : realization.ops) op = position[op];
      }
    }
    return rest;
  }

 private:
  // Returns whether all variants of an op fit. Those that hold most are asked first. Once one of
  // them fits, those that hold less need not be asked.
  bool look_at(OpIndex op) {
    const std::vector<Variant>& variants = graph_.ops[op].variants;
    std::vector<size_t> order(variants.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::stable_sort(order, std::greater<>(), [&](size_t k) { return own(variants[k]); });
    for (const size_t k : order) {
      possible_[op][k] = fits(op, variants[k]);
      if (possible_[op][k] && runs_once(graph_.ops[op])) break;
    }
    return std::ranges::all_of(possible_[op], [](char one) { return one != 0; });
  }

  // Returns the bytes that the run itself holds.
  Instant::Amount own(const Variant& variant) const {
    Instant::Amount bytes = always_ + variant.workspace.count();
    for (const ValueIndex value : variant.writes) bytes += graph_.values[value].bytes.count();
    for (const ValueIndex value : variant.reads) {
      const bool counted = graph_.values[value].kind == ValueKind::kInput;
      if (!counted && !takes(variant, value)) bytes += graph_.values[value].bytes.count();
    }
    return bytes;
  }

  // Notes what a valid plan holds beside each op, where that is less than in the plans before. If it
  // leaves room for a variant, the variant is possible, and no cut is needed.
  void look_at(const std::vector<Run>& runs) {
    const std::vector<BoundAction> actions = with_bound_frees(graph_, runs);
    const Timeline timeline = simulate(graph_, actions);
    auto run = runs.begin();
    for (size_t k = 0; k < actions.size(); ++k) {
      if (actions[k].kind != ActionKind::kRun) continue;
      const Variant& variant = graph_.ops[run->op].variants[run->variant];
      const Instant::Amount beside = timeline.steps[k].during.count() - own(variant);
      beside_[run->op] = std::min(beside_[run->op], beside);
      ++run;
    }
  }

  // Some plans with segments need little memory, and the variants in such a plan are possible. Few
  // ops of a large graph are then left for which only a cut can tell.
  void look_at_segments() {
    if (graph_.ops.size() < kLargeGraph) return;
    const ScheduleModel model(graph_);
    const int32_t loss = starts::position_of_loss(model);
    const auto root = static_cast<int32_t>(std::sqrt(static_cast<double>(loss)));
    for (const int32_t segments : {root / 2, root, 2 * root}) {
      ScheduleLedger ledger(model);
      const Schedule schedule = starts::schedule_of_segments(model, model.lean(), segments);
      if (ledger.assign(schedule)) look_at(ledger.runs());
    }
  }

  // For ops of other realizations, the memory beside the realization that runs is taken.
  void look_at_other_realizations() {
    std::ranges::replace(beside_, kNeverRun, 0);
    for (const Choice& choice : graph_.choices) {
      const auto beside = [&](OpIndex op) { return beside_[op]; };
      const Instant::Amount most =
          std::ranges::max(choice.realizations.front().ops | std::views::transform(beside));
      for (const Realization& realization : choice.realizations) {
        for (const OpIndex op : realization.ops) beside_[op] = std::max(beside_[op], most);
      }
    }
  }

  bool fits(OpIndex op, const Variant& variant) const {
    if (own(variant) > budget_) return false;
    if (!runs_once(graph_.ops[op]) || !can_be_first(variant)) return true;
    if (beside_[op] + own(variant) <= budget_) return true;  // it fits into plain training
    const std::optional<Instant::Amount> least = Instant(facts_, op, variant).least_peak();
    return least && *least <= budget_;
  }

  // Leaves out variants that read a value which nothing writes any more. Returns whether there were
  // any.
  bool leave_out_readers_of_nothing() {
    std::vector<char> is_there(graph_.values.size(), 0);
    for (size_t v = 0; v < is_there.size(); ++v) {
      is_there[v] = graph_.values[v].kind == ValueKind::kInput;
    }
    const auto for_all_possible = [&](const auto& work) {
      for (size_t o = 0; o < graph_.ops.size(); ++o) {
        for (size_t k = 0; k < possible_[o].size(); ++k) {
          if (possible_[o][k]) work(graph_.ops[o].variants[k], possible_[o][k]);
        }
      }
    };
    for_all_possible([&](const Variant& variant, char&) {
      for (const ValueIndex value : variant.writes) is_there[value] = 1;
    });
    bool any = false;
    for_all_possible([&](const Variant& variant, char& possible) {
      if (std::ranges::all_of(variant.reads, [&](ValueIndex value) { return is_there[value]; }))
        return;
      possible = 0;
      any = true;
    });
    return any;
  }

  bool is_possible(const std::vector<OpIndex>& realization) const {
    return std::ranges::all_of(realization, [&](OpIndex op) {
      return std::ranges::any_of(possible_[op], [](char one) { return one != 0; });
    });
  }

  const Graph& graph_;
  const GraphFacts facts_;
  const int64_t budget_;
  const SearchControl& control_;
  int64_t always_ = 0;
  std::vector<Instant::Amount> beside_;      // by op: the bytes beside it
  std::vector<std::vector<char>> possible_;  // by op and variant
};

// Returns whether each of these runs finds its reads live, and the results are live at the end.
bool can_run(const Graph& graph, const std::vector<Run>& runs) {
  std::vector<char> live(graph.values.size(), 0);
  for (size_t v = 0; v < live.size(); ++v) live[v] = graph.values[v].kind == ValueKind::kInput;
  const auto is_live = [&](ValueIndex value) { return live[value] != 0; };
  for (const Run& run : runs) {
    const Variant& variant = graph.ops[run.op].variants[run.variant];
    if (!std::ranges::all_of(variant.reads, is_live)) return false;
    for (const ValueIndex value : variant.reads) live[value] = !takes(variant, value);
    for (const ValueIndex value : variant.writes) live[value] = 1;
  }
  return std::ranges::all_of(graph.results, is_live);
}

// Returns whether each value is still written by an op that stands before all ops that read it. The
// op that wrote it first may have been left out.
bool is_in_order(const Graph& graph) {
  std::vector<char> is_there(graph.values.size(), 0);
  for (size_t v = 0; v < is_there.size(); ++v) {
    is_there[v] = graph.values[v].kind == ValueKind::kInput;
  }
  for (const Op& op : graph.ops) {
    for (const Variant& variant : op.variants) {
      const auto is_ready = [&](ValueIndex value) { return is_there[value] != 0; };
      if (!std::ranges::all_of(variant.reads, is_ready)) return false;
    }
    for (const Variant& variant : op.variants) {
      for (const ValueIndex value : variant.writes) is_there[value] = 1;
    }
  }
  return true;
}

bool has_plain_training(const Graph& graph) {
  const auto has_variant = [](const Op& op) {
    return std::ranges::any_of(op.variants, can_be_first);
  };
  const auto has_realization = [](const Choice& choice) { return !choice.realizations.empty(); };
  if (!std::ranges::all_of(graph.ops, has_variant)) return false;
  if (!std::ranges::all_of(graph.choices, has_realization)) return false;
  try {
    return can_run(graph, plain_runs(graph));
  } catch (const InputError&) {
    return false;  // no variant of some op does for it alone
  }
}

}  // namespace

std::optional<PossibleGraph> leave_out_impossible(const Graph& graph, Bytes budget,
                                                  const SearchControl& control) {
  LeavingOut leaving_out(graph, budget, control);
  if (!leaving_out.look()) return std::nullopt;
  PossibleGraph rest = leaving_out.rest();
  if (!is_in_order(rest.graph) || !has_plain_training(rest.graph)) return std::nullopt;
  return rest;
}

}  // namespace reprise::internal::graph
