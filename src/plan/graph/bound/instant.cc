#include "plan/graph/bound/instant.h"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

namespace reprise::internal::bound {

using common::GraphFacts;
using common::can_be_first;
using common::can_be_rerun;
using common::contains;
using common::runs_once;
using common::takes;

namespace {

constexpr size_t kSource = 0, kSink = 1;
constexpr int32_t kNew = -1, kGrantedNode = -2;
// Numerator and denominator of lambda stay below this, sums of all sizes and times below 2^63: the
// finite capacities sum up to less than kInfinite.
constexpr MaxFlow::Amount kLargestRate = MaxFlow::Amount{1} << 56;
constexpr int kMostCuts = 60;

MaxFlow::Amount rounded_up(MaxFlow::Amount a, MaxFlow::Amount b) {
  return a <= 0 ? -(-a / b) : (a + b - 1) / b;
}

MaxFlow::Amount common_divisor(MaxFlow::Amount a, MaxFlow::Amount b) {
  while (b != 0) std::tie(a, b) = std::tuple(b, a % b);
  return a;
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
      not_live_(facts.graph.values.size(), 0),
      gone_(facts.graph.values.size(), 0),
      node_of_(facts.graph.values.size(), kNew),
      flow_(2 + 3 * facts.graph.values.size()) {
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
    node_of_[value] = kGrantedNode;  // live at b and counted
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
  // nodes_ grows: what is needed to make what is needed.
  for (size_t k = 0; k < nodes_.size(); ++k) {
    const Node node = nodes_[k];
    const Making way = making(node.value);
    if (way.source == Source::kKept) {
      flow_.add_arc(node.needed + 1, kSink, MaxFlow::kInfinite);
      continue;
    }
    for (const ValueIndex read : way.reads) need(read, node.needed + 1);
    if (way.charge > 0) {
      charges_.push_back(
          {facts.group[facts.makers[node.value].front()], way.charge,
           gone_[node.value] && !stretch.follows_another ? node.needed : node.needed + 1});
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
  // In the order in which they are known to hold: what is forced by an op must not count for an earlier one. A value
  // that is live at some op of a span need not have been made before the last of them.
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

// Made once, and live from then on.
bool Instant::stays(ValueIndex value) const {
  const std::vector<OpIndex>& makers = facts_.makers[value];
  return contains(facts_.graph.results, value) && facts_.one_maker[value] &&
         std::all_of(makers.begin(), makers.end(),
                     [&](OpIndex maker) { return runs_once(facts_.graph.ops[maker]); });
}

// What has run and been live by the time of an op, this one at the latest, in every plan that runs this
// variant of b, when a value is live then (-1: none). Of a value with several makers it is not known which has run,
// only what each of them has read.
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
}

// Whether the maker of this value has run by the time of b, in every plan.
bool Instant::charged(ValueIndex value) const {
  if (!facts_.one_maker[value]) return false;
  if (forced_value_[value]) return true;
  return facts_.makers[value].size() == 1 && forced_op_[facts_.makers[value].front()];
}

Instant::Making Instant::making(ValueIndex value) const {
  const auto is_to_come = [&](OpIndex maker) {
    return maker > op_ && runs_once(facts_.graph.ops[maker]);
  };
  const std::vector<OpIndex>& makers = facts_.makers[value];
  // What these read is needed anyway, as far as it is known.
  if (std::all_of(makers.begin(), makers.end(), is_to_come)) return {};
  Making way;
  const bool again = charged(value);
  bool made = false;
  for (const OpIndex maker : makers) {
    const Op& op = facts_.graph.ops[maker];
    // Its only run is over, or there will be none: another maker has run.
    if (runs_once(op) && (again || !is_to_come(maker))) continue;
    for (const Variant& variant : op.variants) {
      if (!contains(variant.writes, value) || (again && !can_be_rerun(variant))) continue;
      const int64_t charge = again ? variant.time.count() : 0;
      if (made) {
        way.charge = std::min(way.charge, charge);
        std::erase_if(way.reads, [&](ValueIndex read) { return !contains(variant.reads, read); });
      } else {
        way = {Source::kMade, charge, variant.reads};
        made = true;
      }
    }
  }
  if (!made) way.source = Source::kKept;
  return way;
}

std::optional<size_t> Instant::node_of(ValueIndex value) {
  if (node_of_[value] == kNew) {
    const Making way = making(value);
    if (way.source == Source::kGranted ||
        (way.source == Source::kMade && way.charge == 0 && way.reads.empty())) {
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

// The node `from` on the source's side needs the value.
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
                         values[smallest].bytes.count(), either.extra.count()});
  }
}

// The largest charge of a group: the charges in ascending order are steps, each on top of the last.
void Instant::add_charges() {
  std::sort(charges_.begin(), charges_.end(), [](const Charge& a, const Charge& b) {
    return std::tie(a.group, a.cost) < std::tie(b.group, b.cost);
  });
  size_t node = 2 + 2 * nodes_.size();
  for (size_t k = 0; k < charges_.size(); ++k) {
    const bool same_group = k > 0 && charges_[k - 1].group == charges_[k].group;
    const int64_t below = same_group ? charges_[k - 1].cost : 0;
    if (!same_group || charges_[k].cost > below) {
      ++node;
      charge_arcs_.push_back({flow_.add_arc(node - 1, kSink, 0), charges_[k].cost - below});
      if (same_group) flow_.add_arc(node - 1, node - 2, MaxFlow::kInfinite);
    }
    flow_.add_arc(charges_[k].node, node - 1, MaxFlow::kInfinite);
  }
}

std::optional<Instant::Line> Instant::solve(Amount price, Amount unit, Amount* total) {
  for (const Node& node : nodes_) {
    const int64_t bytes = facts_.graph.values[node.value].bytes.count();
    flow_.set_capacity(node.keep, node.can_keep ? price * bytes : MaxFlow::kInfinite);
  }
  for (const ChargeArc& step : charge_arcs_) flow_.set_capacity(step.arc, unit * step.cost);
  for (const Instead& instead : insteads_) {
    flow_.set_capacity(instead.arc, price * instead.bytes + unit * instead.cost);
  }
  for (const Wanted& one : wanted_) flow_.set_capacity(one.arc, 0);
  *total = flow_.cut(kSource, kSink);
  if (*total >= MaxFlow::kInfinite) return std::nullopt;
  return current_line();
}

std::optional<Instant::Paid> Instant::pay(const Prices& prices) {
  const auto of = [](std::span<const Amount> list, ValueIndex value) {
    return list.empty() ? Amount{0} : list[static_cast<size_t>(value)];
  };
  for (const Node& node : nodes_) {
    const Amount bytes = facts_.graph.values[node.value].bytes.count();
    const Amount price = prices.byte * bytes + of(prices.live, node.value);
    flow_.set_capacity(node.keep, node.can_keep ? price : MaxFlow::kInfinite);
  }
  for (const ChargeArc& step : charge_arcs_) flow_.set_capacity(step.arc, prices.unit * step.cost);
  // Which of its places is live is not known: no more than its bytes can be asked for.
  for (const Instead& instead : insteads_) {
    flow_.set_capacity(instead.arc, prices.byte * instead.bytes + prices.unit * instead.cost);
  }
  for (const Wanted& one : wanted_) flow_.set_capacity(one.arc, of(prices.missed, one.value));
  Paid paid;
  paid.total = flow_.cut(kSource, kSink);
  if (paid.total >= MaxFlow::kInfinite) return std::nullopt;
  Line line = current_line();
  paid.bytes = line.bytes;
  paid.live = std::move(line.kept);
  for (const Wanted& one : wanted_) {
    if (!flow_.on_source_side(flow_.head(one.arc))) paid.missed.push_back(one.value);
  }
  return paid;
}

std::vector<ValueIndex> Instant::values() const {
  std::vector<ValueIndex> values;
  for (const Node& node : nodes_) values.push_back(node.value);
  return values;
}

std::vector<ValueIndex> Instant::cheapest(const std::vector<double>& prices) {
  // Parts of a nanosecond, as long as the sum of all fits.
  constexpr double kUnit = 1024, kLargest = 1e30;
  for (const Node& node : nodes_) {
    const double price = std::min(kUnit * prices[node.value], kLargest);
    flow_.set_capacity(node.keep, node.can_keep ? static_cast<Amount>(price) : MaxFlow::kInfinite);
  }
  for (const ChargeArc& step : charge_arcs_) {
    flow_.set_capacity(step.arc, static_cast<Amount>(kUnit) * step.cost);
  }
  for (const Instead& instead : insteads_) {
    const double price = instead.bytes > 0 ? kUnit * prices[instead.smallest] : 0;
    flow_.set_capacity(instead.arc, static_cast<Amount>(std::min(price, kLargest)) +
                                        static_cast<Amount>(kUnit) * instead.cost);
  }
  if (flow_.cut(kSource, kSink) >= MaxFlow::kInfinite) return {};
  return current_line().kept;
}

// Of the last cut.
Instant::Line Instant::current_line() const {
  Line line;
  for (const Node& node : nodes_) {
    if (!flow_.on_source_side(node.needed) || flow_.on_source_side(node.needed + 1)) continue;
    line.bytes += facts_.graph.values[node.value].bytes.count();
    line.kept.push_back(node.value);
  }
  for (const ChargeArc& step : charge_arcs_) {
    if (flow_.on_source_side(flow_.tail(step.arc))) line.cost += step.cost;
  }
  for (const Instead& instead : insteads_) {
    if (flow_.on_source_side(flow_.head(instead.arc))) continue;
    line.bytes += instead.bytes;
    line.cost += instead.cost;
    line.kept.push_back(instead.smallest);
  }
  return line;
}

std::optional<Instant::Amount> Instant::least_peak() {
  Amount bytes = 0;
  if (!solve(1, 0, &bytes)) return std::nullopt;
  return base_ + bytes;
}

// The cut is concave in lambda. Two lines bound it from above: one of a set that does not fit, one
// of a set that does. Where they cross the next cut is solved; it meets them, or replaces one.
std::optional<Instant::Amount> Instant::least_time(int64_t budget) {
  kept_.clear();
  price_ = 0;
  const Amount room = budget - base_;
  Amount total = 0;
  std::optional<Line> small = solve(1, 0, &total);
  if (!small || total > room) return std::nullopt;
  Line large = *solve(0, 1, &total);
  Amount best = total;
  for (int cuts = 0; cuts < kMostCuts && large.bytes > room && small->cost > large.cost; ++cuts) {
    Amount price = small->cost - large.cost, unit = large.bytes - small->bytes;
    const Amount divisor = common_divisor(price, unit);
    price /= divisor;
    unit /= divisor;
    while (price >= kLargestRate || unit >= kLargestRate) {
      price >>= 1;
      unit = (unit >> 1) + (unit & 1);
    }
    Line line = *solve(price, unit, &total);
    best = std::max(best, rounded_up(total - price * room, unit));
    price_ = static_cast<double>(price) / static_cast<double>(unit);
    const Amount on_lines = unit * large.cost + price * large.bytes;
    if (total >= on_lines) break;
    (line.bytes > room ? large : *small) = std::move(line);
  }
  kept_ = {std::move(small->kept), std::move(large.kept)};
  return facts_.least_time.count() + extra_ + std::max(best, Amount{0});
}

}  // namespace reprise::internal::bound
