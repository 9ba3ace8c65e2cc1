// Cuts the network of an instant (bound/instant.cc) at prices of memory.
#include <algorithm>
#include <tuple>
#include <utility>

#include "plan/graph/bound/amounts.h"
#include "plan/graph/bound/instant.h"

namespace reprise::internal::bound {
namespace {

// The numerator and the denominator of lambda stay below this. Sums of all sizes and of all times
// are below 2^63. So the finite capacities add up to less than kInfinite.
constexpr MaxFlow::Amount kLargestRate = MaxFlow::Amount{1} << 56;
constexpr int kMostCuts = 60;

MaxFlow::Amount common_divisor(MaxFlow::Amount a, MaxFlow::Amount b) {
  while (b != 0) std::tie(a, b) = std::tuple(b, a % b);
  return a;
}

}  // namespace

std::optional<Instant::Line> Instant::solve(Amount price, Amount unit, Amount* total) {
  for (const Node& node : nodes_) {
    const int64_t bytes = facts_.graph.values[node.value].bytes.count();
    flow_.set_capacity(node.keep, node.can_keep ? price * bytes : MaxFlow::kInfinite);
  }
  for (const ChargeArc& step : charge_arcs_) flow_.set_capacity(step.arc, unit * step.cost);
  for (const Instead& instead : insteads_) {
    flow_.set_capacity(instead.arc, price * instead.bytes);
  }
  for (const ExcessArc& step : excess_arcs_) flow_.set_capacity(step.arc, unit * step.cost);
  for (const Wanted& one : wanted_) flow_.set_capacity(one.arc, 0);
  *total = flow_.cut(kSource, kSink);
  if (*total >= MaxFlow::kInfinite) return std::nullopt;
  return current_line();
}

std::optional<Instant::Paid> Instant::pay(const Prices& prices) {
  const auto of = [](std::span<const Amount> list, ValueIndex value) {
    return list.empty() ? Amount{0} : list[value];
  };
  for (const Node& node : nodes_) {
    const Amount bytes = facts_.graph.values[node.value].bytes.count();
    const Amount price = prices.byte * bytes + of(prices.live, node.value);
    flow_.set_capacity(node.keep, node.can_keep ? price : MaxFlow::kInfinite);
  }
  for (const ChargeArc& step : charge_arcs_) flow_.set_capacity(step.arc, prices.unit * step.cost);
  // It is not known which place is live. So no other price than that of the bytes of the smallest
  // one is asked for.
  for (const Instead& instead : insteads_) {
    flow_.set_capacity(instead.arc, prices.byte * instead.bytes);
  }
  for (const ExcessArc& step : excess_arcs_) flow_.set_capacity(step.arc, prices.unit * step.cost);
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
  // Prices are in parts of a nanosecond. The sum of all must fit into an Amount.
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
    flow_.set_capacity(instead.arc, static_cast<Amount>(std::min(price, kLargest)));
  }
  for (const ExcessArc& step : excess_arcs_) {
    flow_.set_capacity(step.arc, static_cast<Amount>(kUnit) * step.cost);
  }
  if (flow_.cut(kSource, kSink) >= MaxFlow::kInfinite) return {};
  return current_line().kept;
}

// Returns the values that the last cut keeps, and the time that it pays.
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
    line.kept.push_back(instead.smallest);
  }
  for (const ExcessArc& step : excess_arcs_) {
    if (!flow_.on_source_side(flow_.head(step.arc))) line.cost += step.cost;
  }
  return line;
}

std::optional<Instant::Amount> Instant::least_peak() {
  Amount bytes = 0;
  if (!solve(1, 0, &bytes)) return std::nullopt;
  return base_ + bytes;
}

// Lemma 8. The cut is concave in lambda. Two lines bound it from above: that of a set which does
// not fit, and that of a set which fits. The next cut is solved where they cross. It lies on both
// lines, or it replaces one of them.
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
