#include "plan/graph/bound/with_copies.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "plan/common/graph_facts.h"
#include "plan/graph/bound/amounts.h"
#include "reprise/check/simulate.h"
#include "reprise/model/plan.h"

namespace reprise::internal::bound {

using common::can_be_first;
using common::GraphFacts;
using common::runs_once;
using common::SearchControl;
using common::takes;

namespace {

constexpr size_t kMostInstants = 24;  // that are looked at
constexpr int kFirstStep = 16;        // of the search for shares, in 64ths

class CopyBounding {
 public:
  CopyBounding(const Graph& graph, Bytes budget, const Machine& machine, SearchControl& control)
      : graph_(graph),
        facts_(graph),
        budget_(budget.count()),
        carriage_(carriage_of(graph, machine)),
        control_(control) {
    best_.time = facts_.least_time;
  }

  CopyBound run() {
    consider_own_needs();
    if (best_.least_peak.count() > budget_) return std::move(best_);
    for (const OpIndex op : instants()) {
      if (control_.out_of_time()) break;
      look_at(op);
    }
    return std::move(best_);
  }

 private:
  using Shares = Instant::Shares;

  // Lemma 11 holds with copies, too: what a run reads, writes and needs is on the device.
  void consider_own_needs() {
    Bytes always = graph_.fixed, at_end = graph_.fixed;
    for (const Value& value : graph_.values) {
      if (value.kind == ValueKind::kInput) always += value.bytes;
    }
    at_end = always;
    for (const ValueIndex value : graph_.results) {
      const Value& result = graph_.values[value];
      if (result.kind != ValueKind::kInput) at_end += result.bytes;
    }
    if (!graph_.ops.empty()) raise(at_end, static_cast<OpIndex>(graph_.ops.size() - 1));
    for (size_t o = 0; o < graph_.ops.size(); ++o) {
      if (!facts_.certain[o]) continue;
      std::optional<Bytes> least;
      for (const Variant& variant : graph_.ops[o].variants) {
        if (!can_be_first(variant)) continue;
        Bytes need = always + variant.workspace;
        for (const ValueIndex value : variant.writes) {
          need += graph_.values[value].bytes;
        }
        for (const ValueIndex value : variant.reads) {
          const Value& read = graph_.values[value];
          if (read.kind != ValueKind::kInput && !takes(variant, value)) need += read.bytes;
        }
        least = least ? std::min(*least, need) : need;
      }
      if (least) raise(*least, static_cast<OpIndex>(o));
    }
  }

  void raise(Bytes peak, OpIndex op) {
    if (peak <= best_.least_peak) return;
    best_.least_peak = peak;
    best_.blocking_op = op;
  }

  // Returns some of the ops that every plan runs exactly once. Those at which plain training holds
  // most come first: the highest one of each of several stretches of the step.
  std::vector<OpIndex> instants() const {
    const std::vector<Run> runs = plain_runs(graph_);
    const std::vector<BoundAction> actions = with_bound_frees(graph_, runs);
    const Timeline timeline = simulate(graph_, actions);
    std::vector<std::pair<Bytes, OpIndex>> all;
    auto run = runs.begin();
    for (size_t k = 0; k < actions.size(); ++k) {
      if (actions[k].kind != ActionKind::kRun) continue;
      const auto o = static_cast<size_t>(run->op);
      if (facts_.certain[o] && runs_once(graph_.ops[o])) {
        all.emplace_back(timeline.steps[k].during, run->op);
      }
      ++run;
    }
    std::vector<std::pair<Bytes, OpIndex>> highest;
    const size_t stretch = (all.size() + kMostInstants - 1) / kMostInstants;
    for (size_t begin = 0; begin < all.size(); begin += stretch) {
      const auto first = all.begin() + static_cast<std::ptrdiff_t>(begin);
      const auto last =
          all.begin() + static_cast<std::ptrdiff_t>(std::min(all.size(), begin + stretch));
      highest.push_back(*std::max_element(
          first, last, [](const auto& a, const auto& b) { return a.first < b.first; }));
    }
    std::stable_sort(highest.begin(), highest.end(),
                     [](const auto& a, const auto& b) { return a.first > b.first; });
    std::vector<OpIndex> ops;
    for (const auto& [level, op] : highest) ops.push_back(op);
    return ops;
  }

  // Returns the least bound over the variants that may run here. If no plan runs any of
  // them, it returns the largest number.
  int64_t value_at(std::vector<Instant>& instants, const Shares& shares) {
    const auto [known, is_new] = values_.try_emplace({shares.out, shares.in}, 0);
    if (!is_new) return known->second;
    int64_t least = std::numeric_limits<int64_t>::max();
    for (Instant& instant : instants) {
      const auto time = instant.least_time_with_copies(budget_, carriage_, shares);
      if (time) least = std::min(least, narrow(*time));
    }
    known->second = least;
    return least;
  }

  void look_at(OpIndex op) {
    std::vector<Instant> instants;
    for (const Variant& variant : graph_.ops[op].variants) {
      if (!can_be_first(variant)) continue;
      instants.emplace_back(facts_, op, variant, std::vector<Assumption>{},
                            Instant::Stretch{.until = -1, .follows_another = true});
    }
    values_.clear();
    Shares at = shares_;
    int64_t best = value_at(instants, at);
    if (best == std::numeric_limits<int64_t>::max())
      return;  // no plan; consider_own_needs() says so
    for (int step = kFirstStep; step > 0 && !control_.out_of_time();) {
      bool better = false;
      for (const auto& [out, in] :
           {std::pair(1, 1), std::pair(-1, -1), std::pair(1, 0), std::pair(0, 1), std::pair(-1, 0),
            std::pair(0, -1), std::pair(1, -1), std::pair(-1, 1)}) {
        const Shares next{std::clamp(at.out + out * step, 0, Instant::kWhole),
                          std::clamp(at.in + in * step, 0, Instant::kWhole)};
        if (next == at || control_.out_of_time()) continue;
        const int64_t value = value_at(instants, next);
        if (value <= best) continue;
        best = value;
        at = next;
        better = true;
      }
      if (!better) step /= 2;
    }
    if (best <= best_.time.count()) return;
    best_.time = Nanos(best);
    best_.instant = op;
    shares_ = at;
    int64_t least = std::numeric_limits<int64_t>::max();
    for (Instant& instant : instants) {
      Instant::Places places;
      const auto time = instant.least_time_with_copies(budget_, carriage_, at, &places);
      if (!time || narrow(*time) >= least) continue;
      least = narrow(*time);
      best_.places = std::move(places);
    }
  }

  const Graph& graph_;
  const GraphFacts facts_;
  const int64_t budget_;
  const Instant::Carriage carriage_;
  SearchControl& control_;
  Shares shares_{kFirstStep, kFirstStep};          // the best of the highest instant so far
  std::map<std::pair<int, int>, int64_t> values_;  // of one instant, by shares
  CopyBound best_;
};

}  // namespace

Instant::Carriage carriage_of(const Graph& graph, const Machine& machine) {
  Instant::Carriage carriage;
  const auto times = [&](const auto& counts, std::vector<int64_t>& list) {
    std::vector<const Channel*> channels;
    Instant::Amount bandwidth = 0;
    for (const Channel& channel : machine.channels) {
      if (!counts(channel)) continue;
      channels.push_back(&channel);
      bandwidth += channel.bytes_per_second;
    }
    for (const Value& value : graph.values) {
      if (channels.size() == 1) {
        list.push_back(copy_time(*channels.front(), value.bytes).count());
      } else {
        const Instant::Amount time = Instant::Amount{value.bytes.count()} * 1'000'000'000 /
                                     std::max<Instant::Amount>(1, bandwidth);
        list.push_back(narrow(time));
      }
    }
  };
  times([](const Channel& channel) { return channel.from == 0; }, carriage.out);
  times([](const Channel& channel) { return channel.to == 0; }, carriage.in);
  return carriage;
}

CopyBound bound_with_copies(const Graph& graph, Bytes budget, const Machine& machine,
                            SearchControl& control) {
  return CopyBounding(graph, budget, machine, control).run();
}

}  // namespace reprise::internal::bound
