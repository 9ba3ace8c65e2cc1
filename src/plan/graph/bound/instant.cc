// This is the network of an instant: what is needed after b, and how it can come to be.
#include "plan/graph/bound/instant.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace reprise::internal::bound {

using common::can_be_first;
using common::can_be_rerun;
using common::contains;
using common::GraphFacts;
using common::runs_once;
using common::takes;

namespace {

constexpr int32_t kNew = -1, kGrantedNode = -2;

size_t steps_of(const GraphFacts& facts) {
  size_t steps = 0;
  for (const GraphFacts::Excess& excess : facts.excesses) steps += excess.steps.size();
  return steps;
}

bool taken_by_every_first_run(const Op& op, ValueIndex value) {
  return std::all_of(op.variants.begin(), op.variants.end(), [&](const Variant& variant) {
    return !can_be_first(variant) || takes(variant, value);
  });
}

}  // namespace

Instant::Instant(const GraphFacts& facts, OpIndex op, const Variant& variant,
                 const std::vector<Assumption>& assumptions, Stretch stretch)
    : facts_(facts),
      op_(op),
      variant_(variant),
      stretch_(stretch),
      extra_((variant.time - facts.first_time[op]).count()),
      forced_op_(facts.graph.ops.size(), 0),
      forced_value_(facts.graph.values.size(), 0),
      run_given_(facts.graph.ops.size(), 0),
      not_live_(facts.graph.values.size(), 0),
      gone_(facts.graph.values.size(), 0),
      node_of_(facts.graph.values.size(), kNew),
      flow_(2 + 3 * facts.graph.values.size() + steps_of(facts)) {
  const Graph& graph = facts.graph;
  base_ = Amount{graph.fixed.count()} + variant.workspace.count();
  for (size_t v = 0; v < graph.values.size(); ++v) {
    if (graph.values[v].kind != ValueKind::kInput) continue;
    base_ += graph.values[v].bytes.count();
    node_of_[v] = kGrantedNode;
  }
  for (const ValueIndex value : variant.writes) {
    base_ += graph.values[value].bytes.count();
    node_of_[value] = kGrantedNode;
  }
  for (const ValueIndex value : variant.reads) {
    if (takes(variant, value) || node_of_[value] == kGrantedNode) continue;
    base_ += graph.values[value].bytes.count();
    node_of_[value] = kGrantedNode;  // live while b runs, and counted in base
  }
  assume(assumptions);
  force(op);
  for (const GraphFacts::Need& needed : facts.needs) {
    if (!is_inside(needed.after, needed.last)) continue;
    for (const ValueIndex value : needed.values) need(value, kSource);
  }
  if (stretch.until < 0) {
    for (const ValueIndex value : graph.results) need(value, kSource);
  }
  for (const Assumption& later : assumptions) {
    if (is_inside(later.first, later.last) && later.live) need(later.value, kSource);
  }
  for (const ValueIndex value : stretch.wanted) {
    if (const auto node = node_of(value)) {
      wanted_.push_back({flow_.add_arc(kSource, *node, 0), value});
    }
  }
  add_eithers();
  add_excesses();
  // nodes_ grows in this loop, by what is needed to make the values that are needed.
  for (size_t k = 0; k < nodes_.size(); ++k) {
    const Node node = nodes_[k];
    const Making how = making(node.value);
    if (how.source == Source::kKept) {
      flow_.add_arc(node.needed + 1, kSink, MaxFlow::kInfinite);
      continue;
    }
    for (const ValueIndex read : how.reads) need(read, node.needed + 1);
    if (how.charge > 0) {
      charges_.push_back(
          {facts.group[node.value], how.charge,
           gone_[node.value] && !stretch.follows_another ? node.needed : node.needed + 1,
           facts_.is_limited(node.value)});
    }
  }
  for (Instead& instead : insteads_) {
    const bool is_counted = std::any_of(instead.places.begin(), instead.places.end(),
                                        [&](ValueIndex place) { return node_of_[place] != kNew; });
    if (is_counted) instead.bytes = 0;
  }
  add_charges();
}

void Instant::assume(std::vector<Assumption> assumptions) {
  // Lemma 12. The assumptions are taken in the order in which they are known to hold, as what is
  // forced by an op must not count for an earlier op. A value that is live at some op of a range
  // need not have been made before the last one of the range.
  const auto known = [](const Assumption& one) { return one.live ? one.last : one.first; };
  std::stable_sort(assumptions.begin(), assumptions.end(),
                   [&](const Assumption& a, const Assumption& b) { return known(a) < known(b); });
  for (const Assumption& one : assumptions) {
    if (node_of_[one.value] == kGrantedNode) continue;
    const bool is_now = one.first == op_ && one.last == op_;
    if (is_now && one.live) {
      base_ += facts_.graph.values[one.value].bytes.count();
      node_of_[one.value] = kGrantedNode;
    } else if (is_now) {
      not_live_[one.value] = 1;
    } else if (one.last < op_ && one.live) {
      force(one.first, one.value);
    } else if (one.last < op_) {
      force(one.first);
      if (charged(one.value)) gone_[one.value] = 1;
    } else if (one.first > op_ && !one.live && stays(one.value)) {
      not_live_[one.value] = 1;
    }
  }
}

// Returns whether the value is made once in every plan, and live from then on.
bool Instant::stays(ValueIndex value) const {
  const std::vector<OpIndex>& makers = facts_.makers[value];
  return contains(facts_.graph.results, value) && facts_.one_maker[value] &&
         std::all_of(makers.begin(), makers.end(),
                     [&](OpIndex maker) { return runs_once(facts_.graph.ops[maker]); });
}

// Lemma 2: notes which ops have run, and which values have been live, by the time of the op
// `until`, in every plan that runs this variant of b. `live` is a value that is live then; -1:
// none. If a value has several makers, it is not known which one has run. It is only known what all
// of them read.
void Instant::force(OpIndex until, ValueIndex live) {
  std::vector<OpIndex> open_ops;
  std::vector<ValueIndex> open_values;
  const auto force_op = [&](OpIndex op) {
    if (forced_op_[op]) return;
    forced_op_[op] = 1;
    open_ops.push_back(op);
  };
  const auto force_value = [&](ValueIndex value) {
    if (forced_value_[value]) return;
    forced_value_[value] = 1;
    if (facts_.makers[value].size() == 1) {
      force_op(facts_.makers[value].front());
    } else {
      open_values.push_back(value);
    }
  };
  if (live >= 0) force_value(live);
  for (OpIndex op = 0; op <= until; ++op) {
    const bool runs = facts_.certain[op] || op == op_;
    if (runs && runs_once(facts_.graph.ops[op])) force_op(op);
  }
  while (!open_ops.empty() || !open_values.empty()) {
    if (open_ops.empty()) {
      const ValueIndex value = open_values.back();
      open_values.pop_back();
      for (const ValueIndex source : facts_.made_from[value]) force_value(source);
      continue;
    }
    const OpIndex op = open_ops.back();
    open_ops.pop_back();
    for (const ValueIndex value : op == op_ ? variant_.reads : facts_.first_reads[op]) {
      force_value(value);
      if (op != op_ && taken_by_every_first_run(facts_.graph.ops[op], value)) gone_[value] = 1;
    }
  }
  find_run_given();
}

// Lemma 2 (e), for each realization as if it were the plan's. A value that has been live was made
// by the realization if nothing outside of the choice can make it.
void Instant::find_run_given() {
  std::vector<char> has_been(forced_value_);
  for (size_t c = 0; c < facts_.graph.choices.size(); ++c) {
    for (const Realization& realization : facts_.graph.choices[c].realizations) {
      std::vector<ValueIndex> added;
      // The realization makes the operands of an op before the op. So one pass from the last op to
      // the first finds all.
      for (size_t k = realization.ops.size(); k-- > 0;) {
        const OpIndex op = realization.ops[k];
        const Op& one = facts_.graph.ops[op];
        const bool has_run =
            forced_op_[op] || std::ranges::any_of(one.variants, [&](const Variant& variant) {
              return std::ranges::any_of(variant.writes, [&](ValueIndex value) {
                return has_been[value] && facts_.choice_of_makers[value] == static_cast<int32_t>(c);
              });
            });
        run_given_[op] = has_run;
        if (!has_run) continue;
        for (const ValueIndex value : op == op_ ? variant_.reads : facts_.first_reads[op]) {
          if (has_been[value]) continue;
          has_been[value] = 1;
          added.push_back(value);
        }
      }
      for (const ValueIndex value : added) has_been[value] = 0;
    }
  }
}

// Returns whether every run that makes this value after b is a re-run, in every plan: its maker has
// run by the time of b.
bool Instant::charged(ValueIndex value) const {
  if (!facts_.one_maker[value]) return false;
  if (forced_value_[value]) return true;
  const std::vector<OpIndex>& makers = facts_.makers[value];
  if (makers.size() == 1 && forced_op_[makers.front()]) return true;
  return facts_.choice_of_makers[value] >= 0 &&
         std::ranges::all_of(makers, [&](OpIndex maker) { return run_given_[maker] != 0; });
}

Instant::Making Instant::making(ValueIndex value) const {
  const auto is_to_come = [&](OpIndex maker) {
    return maker > op_ && runs_once(facts_.graph.ops[maker]);
  };
  const std::vector<OpIndex>& makers = facts_.makers[value];
  // Lemma 4: the value is granted. The reads of its makers are needed anyway, as far as they are
  // known.
  if (std::all_of(makers.begin(), makers.end(), is_to_come)) return {};
  Making how;
  const bool again = charged(value);
  bool made = false;
  for (const OpIndex maker : makers) {
    const Op& op = facts_.graph.ops[maker];
    // The only run of this op is over, or there is none because another maker has run.
    if (runs_once(op) && (again || !is_to_come(maker))) continue;
    for (const Variant& variant : op.variants) {
      if (!contains(variant.writes, value) || (again && !can_be_rerun(variant))) continue;
      const Nanos most = std::min(variant.time, facts_.most_charge[value]);
      const int64_t charge = again ? most.count() : 0;
      if (made) {
        how.charge = std::min(how.charge, charge);
        std::erase_if(how.reads, [&](ValueIndex read) { return !contains(variant.reads, read); });
      } else {
        how = {Source::kMade, charge, variant.reads};
        made = true;
      }
    }
  }
  if (!made) how.source = Source::kKept;
  return how;
}

std::optional<size_t> Instant::node_of(ValueIndex value) {
  if (node_of_[value] == kNew) {
    const Making how = making(value);
    if (how.source == Source::kGranted ||
        (how.source == Source::kMade && how.charge == 0 && how.reads.empty())) {
      node_of_[value] = kGrantedNode;
      return std::nullopt;
    }
    const size_t node = 2 + 2 * nodes_.size();
    node_of_[value] = static_cast<int32_t>(node);
    const bool can_keep = !takes(variant_, value) && !not_live_[value];
    nodes_.push_back({value, node, flow_.add_arc(node, node + 1, MaxFlow::kInfinite), can_keep});
  }
  if (node_of_[value] == kGrantedNode) return std::nullopt;
  return static_cast<size_t>(node_of_[value]);
}

// If the node `from` is on the source's side, the value is needed.
void Instant::need(ValueIndex value, size_t from) {
  if (const auto node = node_of(value)) flow_.add_arc(from, *node, MaxFlow::kInfinite);
}

void Instant::add_eithers() {
  for (const GraphFacts::Either& either : facts_.eithers) {
    if (!is_inside(either.after, either.last)) continue;
    const auto node = node_of(either.value);
    if (!node) continue;
    std::vector<ValueIndex> places = either.places;
    std::erase_if(places, [&](ValueIndex place) { return not_live_[place] != 0; });
    if (places.empty()) {
      need(either.value, kSource);
      continue;
    }
    const std::vector<Value>& values = facts_.graph.values;
    const ValueIndex smallest = *std::min_element(
        places.begin(), places.end(),
        [&](ValueIndex a, ValueIndex b) { return values[a].bytes < values[b].bytes; });
    insteads_.push_back({flow_.add_arc(kSource, *node, 0), std::move(places), smallest,
                         values[smallest].bytes.count()});
  }
}

// Lemma 7 (b). A step that is not on the source's side is paid, and so are the steps below it.
void Instant::add_excesses() {
  size_t node = 2 + 3 * facts_.graph.values.size();
  for (const GraphFacts::Excess& excess : facts_.excesses) {
    if (!is_inside(excess.after, excess.last)) continue;
    for (const ValueIndex value : excess.always) need(value, kSource);
    int64_t below = 0;
    for (const GraphFacts::Excess::Step& step : excess.steps) {
      if (below > 0) flow_.add_arc(node - 1, node, MaxFlow::kInfinite);
      const int64_t extra = step.extra.count();
      excess_arcs_.push_back({flow_.add_arc(kSource, node, 0), extra - below});
      for (const ValueIndex value : step.values) need(value, node);
      below = extra;
      ++node;
    }
  }
}

// Lemma 6: the largest charge of a group is paid. Its charges in ascending order are steps, each on
// top of the last.
void Instant::add_charges() {
  std::sort(charges_.begin(), charges_.end(), [](const Charge& a, const Charge& b) {
    return std::tie(a.group, a.cost) < std::tie(b.group, b.cost);
  });
  size_t node = 2 + 2 * nodes_.size();
  bool is_limited = false;
  for (size_t k = 0; k < charges_.size(); ++k) {
    const bool same_group = k > 0 && charges_[k - 1].group == charges_[k].group;
    const int64_t below = same_group ? charges_[k - 1].cost : 0;
    if (!same_group) is_limited = false;
    for (size_t n = k; !same_group && n < charges_.size(); ++n) {
      if (charges_[n].group != charges_[k].group) break;
      is_limited = is_limited || charges_[n].is_limited;
    }
    if (!same_group || charges_[k].cost > below) {
      ++node;
      charge_arcs_.push_back(
          {flow_.add_arc(node - 1, kSink, 0), charges_[k].cost - below, is_limited});
      if (same_group) flow_.add_arc(node - 1, node - 2, MaxFlow::kInfinite);
    }
    flow_.add_arc(charges_[k].node, node - 1, MaxFlow::kInfinite);
  }
}

}  // namespace reprise::internal::bound
