// These are the cuts of an instant where values may also be elsewhere
// (docs/planners/graph_bound.md, Lemma 15).
//
// | symbol          | here                                                    |
// |-----------------|---------------------------------------------------------|
// | pF, pB          | shares.out / kWhole, shares.in / kWhole                 |
// | out(v), in(v)   | carriage                                                |
// | t1, t2, t3      | Spent::before, after, either                            |
// | lambda          | price / unit                                            |
//
// All amounts are in parts of a nanosecond, of which kWhole * unit are one nanosecond.
#include <algorithm>
#include <tuple>
#include <utility>

#include "plan/graph/bound/amounts.h"
#include "plan/graph/bound/instant.h"

namespace reprise::internal::bound {

using common::runs_once;

namespace {

// The numerator and the denominator of lambda stay below this. With kWhole, finite capacities add
// up to less than kInfinite.
constexpr MaxFlow::Amount kLargestRateOfCopies = MaxFlow::Amount{1} << 50;
constexpr int kMostCutsOfCopies = 40;

}  // namespace

Instant::Spent Instant::spent() const {
  Spent spent;
  const Graph& graph = facts_.graph;
  for (size_t o = 0; o < graph.ops.size(); ++o) {
    if (!facts_.certain[o]) continue;
    const auto op = static_cast<OpIndex>(o);
    if (op >= op_ && runs_once(graph.ops[o])) {
      spent.after += facts_.first_time[o].count();
    } else if (forced_op_[o] && op != op_) {
      spent.before += facts_.first_time[o].count();
    }
  }
  for (const Choice& choice : graph.choices) {
    if (choice.realizations.size() == 1) continue;  // its ops are certain
    bool all_before = true, all_after = true;
    Nanos fastest;
    for (const Realization& one : choice.realizations) {
      Nanos time;
      for (const OpIndex op : one.ops) {
        const bool ordered = runs_once(graph.ops[op]);
        all_before &= ordered && op < op_;
        all_after &= ordered && op > op_;
        time += facts_.first_time[op];
      }
      const bool is_first = &one == &choice.realizations.front();
      fastest = is_first ? time : std::min(fastest, time);
    }
    if (all_before) spent.before += fastest.count();
    if (all_after) spent.after += fastest.count();
  }
  spent.either = facts_.least_time.count() - spent.before - spent.after;
  spent.after += extra_;
  return spent;
}

Instant::Line Instant::solve_with_copies(Amount price, Amount unit, const Carriage& carriage,
                                         const Shares& shares, Amount* total, Places* places) {
  const auto away = [&](ValueIndex value) {
    const auto v = static_cast<size_t>(value);
    return Amount{shares.out} * carriage.out[v] + Amount{shares.in} * carriage.in[v];
  };
  const auto here = [&](int64_t bytes) { return Amount{kWhole} * bytes; };
  const Amount rerun = kWhole - shares.in, any_time = kWhole - std::max(shares.out, shares.in);
  // A value that is not made again is here or away. The cheaper of these two ways counts.
  const auto is_here = [&](int64_t bytes, ValueIndex value) {
    return price * here(bytes) <= unit * away(value);
  };
  const auto kept = [&](int64_t bytes, ValueIndex value) {
    return is_here(bytes, value) ? price * here(bytes) : unit * away(value);
  };
  for (const Node& node : nodes_) {
    const int64_t bytes = facts_.graph.values[node.value].bytes.count();
    flow_.set_capacity(node.keep,
                       node.can_keep ? kept(bytes, node.value) : unit * away(node.value));
  }
  for (const ChargeArc& step : charge_arcs_) {
    flow_.set_capacity(step.arc, unit * (step.is_limited ? any_time : rerun) * step.cost);
  }
  for (const Instead& instead : insteads_) {
    const Amount place = instead.bytes > 0 ? kept(instead.bytes, instead.smallest) : Amount{0};
    flow_.set_capacity(instead.arc, place);
  }
  for (const ExcessArc& step : excess_arcs_) {
    flow_.set_capacity(step.arc, unit * any_time * step.cost);
  }
  for (const Wanted& one : wanted_) flow_.set_capacity(one.arc, 0);
  *total = flow_.cut(kSource, kSink);
  Line line;
  for (const Node& node : nodes_) {
    if (!flow_.on_source_side(node.needed) || flow_.on_source_side(node.needed + 1)) continue;
    const int64_t bytes = facts_.graph.values[node.value].bytes.count();
    const bool stays = node.can_keep && is_here(bytes, node.value);
    (stays ? line.bytes : line.cost) += stays ? here(bytes) : away(node.value);
    if (places != nullptr) (stays ? places->here : places->away).push_back(node.value);
  }
  for (const ChargeArc& step : charge_arcs_) {
    if (flow_.on_source_side(flow_.tail(step.arc))) {
      line.cost += (step.is_limited ? any_time : rerun) * step.cost;
    }
  }
  for (const Instead& instead : insteads_) {
    if (flow_.on_source_side(flow_.head(instead.arc))) continue;
    if (instead.bytes == 0) continue;
    const bool stays = is_here(instead.bytes, instead.smallest);
    (stays ? line.bytes : line.cost) += stays ? here(instead.bytes) : away(instead.smallest);
    if (places != nullptr) (stays ? places->here : places->away).push_back(instead.smallest);
  }
  for (const ExcessArc& step : excess_arcs_) {
    if (!flow_.on_source_side(flow_.head(step.arc))) line.cost += any_time * step.cost;
  }
  return line;
}

std::optional<Instant::Amount> Instant::least_time_with_copies(int64_t budget,
                                                               const Carriage& carriage,
                                                               const Shares& shares,
                                                               Places* places) {
  const Amount room = Amount{kWhole} * (budget - base_);
  if (room < 0) return std::nullopt;  // Everything else can be elsewhere, or is made again.
  Amount total = 0;
  // With a price that is too high for any byte, nothing that can be elsewhere stays here.
  Line small = solve_with_copies(kLargestRateOfCopies, 1, carriage, shares, &total, nullptr);
  if (total >= MaxFlow::kInfinite) return std::nullopt;
  Line large = solve_with_copies(0, 1, carriage, shares, &total, nullptr);
  Amount best = std::max(total, Amount{0});
  Amount price = 0, unit = 1;
  std::pair<Amount, Amount> best_price{0, 1};
  for (int cuts = 0; cuts < kMostCutsOfCopies && large.bytes > room && small.bytes <= room &&
                     small.cost > large.cost;
       ++cuts) {
    price = small.cost - large.cost;
    unit = large.bytes - small.bytes;
    while (price >= kLargestRateOfCopies || unit >= kLargestRateOfCopies) {
      price >>= 1;
      unit = (unit >> 1) + (unit & 1);
    }
    Line line = solve_with_copies(price, unit, carriage, shares, &total, nullptr);
    const Amount value = rounded_up(total - price * room, unit);
    if (value > best) {
      best = value;
      best_price = {price, unit};
    }
    if (total >= unit * large.cost + price * large.bytes) break;
    (line.bytes > room ? large : small) = std::move(line);
  }
  if (places != nullptr) {
    *places = {};
    std::tie(price, unit) = best_price;
    solve_with_copies(price, unit, carriage, shares, &total, places);
    places->price = static_cast<double>(price) / static_cast<double>(unit);
  }
  const Spent times = spent();
  const Amount runs = Amount{kWhole - shares.out} * times.before +
                      Amount{kWhole - shares.in} * times.after +
                      Amount{kWhole - std::max(shares.out, shares.in)} * times.either;
  return rounded_up(runs + best, kWhole);
}

}  // namespace reprise::internal::bound
