#include "plan/graph/bound/moment.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "plan/graph/bound/amounts.h"

namespace reprise::internal::bound {

using common::can_be_first;
using common::GraphFacts;
using common::runs_once;
using common::SearchControl;

namespace {

Nanos time_of(const GraphFacts& facts, const std::vector<OpIndex>& ops) {
  Nanos time;
  for (const OpIndex op : ops) time += facts.first_time[op];
  return time;
}

// Returns the moment of a choice, or nothing if some realization has no ordered op.
std::optional<Moment> moment_of(const GraphFacts& facts, const Choice& choice) {
  Moment moment{{}, std::numeric_limits<OpIndex>::max(), true};
  Nanos fastest = time_of(facts, choice.realizations.front().ops);
  for (const Realization& one : choice.realizations) {
    fastest = std::min(fastest, time_of(facts, one.ops));
  }
  for (const Realization& one : choice.realizations) {
    Moment::Realization realization{{}, (time_of(facts, one.ops) - fastest).count()};
    for (const OpIndex op : one.ops) {
      if (!runs_once(facts.graph.ops[op])) continue;
      realization.ops.push_back(op);
      moment.first = std::min(moment.first, op);
    }
    if (realization.ops.empty()) return std::nullopt;
    realization.at = realization.ops.front();
    moment.realizations.push_back(std::move(realization));
  }
  return moment;
}

// Returns the least cost over the variants that may be the first run of the op.
std::optional<MomentCost> cost_of_op(const GraphFacts& facts, OpIndex op, int64_t budget,
                                     const std::vector<Assumption>& assumptions,
                                     Instant::Stretch stretch) {
  std::optional<MomentCost> least;
  for (const Variant& variant : facts.graph.ops[op].variants) {
    if (!can_be_first(variant)) continue;
    Instant instant(facts, op, variant, assumptions, stretch);
    const std::optional<Instant::Amount> time = instant.least_time(budget);
    if (!time) continue;
    const int64_t extra = narrow(*time) - facts.least_time.count();
    if (!least || extra < least->time) least = MomentCost{op, false, extra, instant.kept()};
  }
  return least;
}

std::optional<MomentPeak> peak_of_op(const GraphFacts& facts, OpIndex op) {
  std::optional<MomentPeak> least;
  for (const Variant& variant : facts.graph.ops[op].variants) {
    if (!can_be_first(variant)) continue;
    const std::optional<Instant::Amount> peak = Instant(facts, op, variant).least_peak();
    if (peak && (!least || narrow(*peak) < least->peak)) least = MomentPeak{op, narrow(*peak)};
  }
  return least;
}

}  // namespace

std::vector<Moment> moments_of(const GraphFacts& facts) {
  std::vector<Moment> moments;
  for (size_t o = 0; o < facts.graph.ops.size(); ++o) {
    const auto op = static_cast<OpIndex>(o);
    if (facts.certain[o] && runs_once(facts.graph.ops[o])) {
      moments.push_back({{{{op}, 0, op}}, op, false});
    }
  }
  for (const Choice& choice : facts.graph.choices) {
    if (choice.realizations.size() == 1) continue;  // its ops are certain
    if (auto moment = moment_of(facts, choice)) moments.push_back(std::move(*moment));
  }
  std::stable_sort(moments.begin(), moments.end(),
                   [](const Moment& a, const Moment& b) { return a.first < b.first; });
  return moments;
}

Assumption assume_at(const Moment& moment, ValueIndex value, bool live) {
  Assumption assumption{value, moment.realizations.front().at, moment.realizations.front().at,
                        live};
  for (const Moment::Realization& realization : moment.realizations) {
    assumption.first = std::min(assumption.first, realization.at);
    assumption.last = std::max(assumption.last, realization.at);
  }
  return assumption;
}

void find_deciding_ops(const GraphFacts& facts, Moment& moment, int64_t budget,
                       const SearchControl& control) {
  for (Moment::Realization& realization : moment.realizations) {
    if (realization.ops.size() == 1) continue;
    int64_t most = -1;
    for (const OpIndex op : realization.ops) {
      if (control.out_of_time()) return;
      const std::optional<MomentCost> cost = cost_of_op(facts, op, budget, {}, {});
      const int64_t time = cost ? cost->time : std::numeric_limits<int64_t>::max();
      if (time <= most) continue;
      most = time;
      realization.at = op;
    }
  }
}

std::optional<MomentCost> cost_of_moment(const GraphFacts& facts, const Moment& moment,
                                         int64_t budget, const std::vector<Assumption>& assumptions,
                                         Instant::Stretch stretch) {
  const Assumption own = assume_at(moment, -1, false);
  std::optional<MomentCost> least;
  std::vector<Assumption> here = assumptions;
  for (const Moment::Realization& realization : moment.realizations) {
    // Assumptions about this moment are about the op `at` of this realization.
    for (size_t k = 0; k < here.size(); ++k) {
      if (assumptions[k].first == own.first) here[k].first = here[k].last = realization.at;
    }
    MomentCost most;
    bool possible = true;
    for (const OpIndex op : realization.ops) {
      std::optional<MomentCost> cost = cost_of_op(facts, op, budget, here, stretch);
      possible = cost.has_value();
      if (!possible) break;
      if (most.op < 0 || cost->time > most.time) most = std::move(*cost);
    }
    most.time = narrow(Instant::Amount{most.time} + realization.extra);
    most.is_assumed = most.op == realization.at;
    if (possible && (!least || most.time < least->time)) least = std::move(most);
  }
  return least;
}

Nanos time_with(const GraphFacts& facts, Instant::Amount extra) {
  return Nanos(narrow(extra + facts.least_time.count()));
}

std::optional<MomentPeak> peak_of_moment(const GraphFacts& facts, const Moment& moment) {
  std::optional<MomentPeak> least;
  for (const Moment::Realization& realization : moment.realizations) {
    MomentPeak most;
    bool possible = true;
    for (const OpIndex op : realization.ops) {
      const std::optional<MomentPeak> peak = peak_of_op(facts, op);
      possible = peak.has_value();
      if (!possible) break;
      if (most.op < 0 || peak->peak > most.peak) most = *peak;
    }
    if (possible && (!least || most.peak < least->peak)) least = most;
  }
  return least;
}

}  // namespace reprise::internal::bound
