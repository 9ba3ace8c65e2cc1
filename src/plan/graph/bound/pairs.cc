// Two instants b1 and b2 have two stretches: what is made again between them, and what is made
// again after b2 (docs/planners/graph_bound.md, Lemma 14).
//
//     b1                b2
//     |--- stretch 1 ---|--- stretch 2 --->
//     L1, R1            L2, R2                 each v in L2 is in L1, in R1, or granted
//
// Each stretch alone keeps what suits it best, and the first one need not have what the second one
// keeps. But what is live at b2 was live at b1, or was made in between:
//
//   least  cost(R1) + cost(R2)   with  bytes(L1) <= room of b1,  bytes(L2) <= room of b2,
//                                      each v of L2 in L1, in R1, or granted.
//
// Put a price lambda1, lambda2 on a byte at each instant, and a price mu(v) >= 0 on each value that
// is live at b2 without having been there before. Then the problem falls into two minimum cuts
// (Lagrangian decomposition: M. Guignard, S. Kim, "Lagrangean decomposition: a model yielding
// stronger Lagrangean bounds", Mathematical Programming 39, 1987):
//
//   cut1(lambda1; mu(v) for each v neither in L1 nor in R1) + cut2(lambda2; mu(v) for each v in L2)
//     - sum of mu - lambda1 * room1 - lambda2 * room2   <=   what a plan pays that has both.
//
// This holds for all prices, and in whole numbers it is exact. Good prices are found by
// subgradients. Each subgradient is mixed with the direction before it, and steps go towards a
// target that moves (S. Kim, H. Ahn, S.-C. Cho, "Variable target value subgradient method",
// Mathematical Programming 49, 1990).
//
// A plan has one realization of a moment and one variant of an op. So the least of all combinations
// holds. The first runs of both moments count beside each other (extra time), and so do the runs of
// the two stretches.
//
// | symbol           | here                                                            |
// |------------------|-----------------------------------------------------------------|
// | lambda1, lambda2 | Multipliers::first, second                                      |
// | mu               | Multipliers::link                                               |
// | L1, R1, room1    | Pair::first_ pays for them                                      |
// | L2, R2, room2    | Pair::second_ pays for them                                     |
//
// Complexity: a step takes two cuts, and each two variants take some dozens of steps.
//
// Tests: oracle/graph_moment_test.cc (never above exhaustive search, in all families of graphs).
#include "plan/graph/bound/pairs.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "plan/graph/bound/instant.h"

namespace reprise::internal::bound {

using common::can_be_first;
using common::GraphFacts;
using common::SearchControl;

namespace {

using Amount = Instant::Amount;

constexpr Amount kUnit = Amount{1} << 20;  // parts of a nanosecond
constexpr double kLargest = 1e18;          // price, in such parts

// Prices in nanoseconds, or a direction in which prices change.
struct Multipliers {
  double first = 0, second = 0;  // for a byte; in a direction: for a value of mean size
  std::vector<double> link;      // by value

  explicit Multipliers(size_t values) : link(values, 0) {}
};

Amount in_parts(double nanoseconds) {
  return static_cast<Amount>(std::clamp(nanoseconds * static_cast<double>(kUnit), 0.0, kLargest));
}

Amount rounded_up(Amount parts) {
  return parts > 0 ? (parts + kUnit - 1) / kUnit : -(-parts / kUnit);
}

// A Pair is two ops with a variant each.
class Pair {
 public:
  struct End {
    OpIndex op;
    const Variant& variant;
  };

  // Both must be possible within the budget.
  Pair(const GraphFacts& facts, End first, End second, OpIndex until, int64_t budget,
       const PairParams& params)
      : params_(params),
        second_(facts, second.op, second.variant, {}, {-1, true}),
        first_(facts, first.op, first.variant, live_at(first, second, until),
               {until, false, second_.values()}),
        room_first_(first_.room(budget)),
        room_second_(second_.room(budget)) {
    std::vector<char> is_there(facts.graph.values.size(), 0);
    for (const ValueIndex value : first_.values()) is_there[value] = 1;
    for (const ValueIndex value : second_.values()) {
      if (!is_there[value]) continue;
      links_.push_back(value);
      mean_bytes_ += static_cast<double>(facts.graph.values[value].bytes.count());
    }
    mean_bytes_ /= static_cast<double>(links_.size() + 1);
  }

  // Steps from these prices towards a target and beyond. Returns the best bound that was met, and
  // sets `prices` to the prices of this bound. The steps end when the bound is `wanted`, or when it
  // does not promise to become `enough`. Returns nothing if no plan has both.
  std::optional<Amount> climb(Multipliers& prices, double target, int steps, Amount enough,
                              Amount wanted, const SearchControl& control) {
    Multipliers at = prices, direction(at.link.size());
    std::optional<Amount> best;
    double so_far = 0;
    for (int step = 0, idle = 0; step < steps; ++step) {
      Multipliers slope(at.link.size());
      const std::optional<Amount> now = evaluate(at, slope);
      if (!now) return std::nullopt;
      if (!best || *now > *best) {
        idle = 0;
        best = now;
        so_far = static_cast<double>(*best);
        prices = at;
      } else if (++idle == params_.patience) {
        idle = 0;
        target = (so_far + target) / 2;
        at = prices;
        direction = Multipliers(at.link.size());
        if (target - so_far <= params_.reached * std::abs(so_far)) break;
        continue;
      }
      const bool promises =
          step < params_.trial || so_far >= params_.promising * static_cast<double>(enough);
      if (*best >= wanted || !promises || control.out_of_time()) break;
      if (target <= so_far + params_.ahead / 4 * std::abs(so_far)) {
        target = so_far + params_.ahead * std::abs(so_far);
      }
      if (!move(at, direction, slope, target - static_cast<double>(*now))) break;
    }
    return best;
  }

 private:
  // The operands of the second op were live, unless the stretch ends before it begins.
  static std::vector<Assumption> live_at(const End& first, const End& second, OpIndex until) {
    std::vector<Assumption> live;
    if (until <= first.op) return live;
    for (const ValueIndex value : second.variant.reads) live.push_back({value, until, until, true});
    return live;
  }

  // Returns the bound in nanoseconds. `slope` becomes the direction in which the bound rises.
  std::optional<Amount> evaluate(const Multipliers& at, Multipliers& slope) {
    std::vector<Amount> link(at.link.size(), 0);
    Amount links = 0;
    for (const ValueIndex value : links_) links += link[value] = in_parts(at.link[value]);
    const Amount first = in_parts(at.first), second = in_parts(at.second);
    const auto before = first_.pay({kUnit, first, {}, link});
    const auto after = second_.pay({kUnit, second, link, {}});
    if (!before || !after) return std::nullopt;
    for (const ValueIndex value : links_) slope.link[value] = -1;
    for (const ValueIndex value : before->missed) slope.link[value] += 1;
    for (const ValueIndex value : after->live) slope.link[value] += 1;
    slope.first = static_cast<double>(before->bytes - room_first_) / mean_bytes_;
    slope.second = static_cast<double>(after->bytes - room_second_) / mean_bytes_;
    return rounded_up(before->total + after->total - links - first * room_first_ -
                      second * room_second_) +
           first_.extra() + second_.extra();
  }

  // Moves so far that the bound would rise by `rise` if it went on as steeply. Returns
  // false if it does not rise any more.
  bool move(Multipliers& at, Multipliers& direction, const Multipliers& slope, double rise) const {
    const auto mix = [&](double& old, double now) { return old = params_.momentum * old + now; };
    double square = std::pow(mix(direction.first, slope.first), 2) +
                    std::pow(mix(direction.second, slope.second), 2);
    for (const ValueIndex value : links_) {
      square += std::pow(mix(direction.link[value], slope.link[value]), 2);
    }
    if (square == 0) return false;
    const double by = rise / square;
    const auto add = [](double& price, double change) { price = std::max(0.0, price + change); };
    add(at.first, by * direction.first / mean_bytes_);
    add(at.second, by * direction.second / mean_bytes_);
    for (const ValueIndex value : links_) add(at.link[value], by * direction.link[value]);
    return true;
  }

  const PairParams& params_;
  Instant second_, first_;
  const Amount room_first_, room_second_;
  std::vector<ValueIndex> links_;  // the values that can be live at b2 and missed before
  double mean_bytes_ = 1;
};

// Returns the variants that can be the first run of an op.
std::vector<const Variant*> first_variants(const Op& op) {
  std::vector<const Variant*> variants;
  for (const Variant& variant : op.variants) {
    if (can_be_first(variant)) variants.push_back(&variant);
  }
  return variants;
}

class PairOfMoments {
 public:
  PairOfMoments(const GraphFacts& facts, int64_t budget, int64_t enough,
                const SearchControl& control, const PairParams& params)
      : facts_(facts),
        budget_(budget),
        enough_(enough),
        control_(control),
        params_(params),
        prices_(facts.graph.values.size()) {}

  // Looks at one realization of each moment. Returns whether the least of all combinations can
  // still be more than enough.
  bool look_at(const Moment::Realization& first, const Moment::Realization& second, OpIndex until) {
    // The ops run in the other order. Then only the time of first runs is known.
    if (first.at >= second.at) return note(Amount{first.extra} + second.extra);
    for (const Variant* before : first_variants(facts_.graph.ops[first.at])) {
      for (const Variant* after : first_variants(facts_.graph.ops[second.at])) {
        if (!look_at(first, *before, second, *after, until)) return false;
      }
    }
    return true;
  }

  // Returns nothing if no plan has both.
  std::optional<int64_t> least() const {
    if (!least_) return std::nullopt;
    return static_cast<int64_t>(
        std::clamp<Amount>(*least_, 0, std::numeric_limits<int64_t>::max()));
  }

 private:
  bool look_at(const Moment::Realization& first, const Variant& before,
               const Moment::Realization& second, const Variant& after, OpIndex until) {
    Instant alone(facts_, first.at, before), other(facts_, second.at, after);
    const auto one = alone.least_time(budget_), two = other.least_time(budget_);
    if (!one || !two) return true;  // no plan has this variant
    // The bound of one instant alone may already count the extra time of the other one's choice.
    const Amount single =
        std::max(*one + first.extra, *two + second.extra) - facts_.least_time.count();
    const Amount extra = Amount{first.extra} + second.extra;
    const bool is_first = !has_prices_;
    if (is_first) {
      prices_.first = alone.price();
      prices_.second = other.price();
      has_prices_ = true;
    }
    const Amount wanted = least_ ? *least_ - extra : std::numeric_limits<int64_t>::max();
    Pair pair(facts_, {first.at, before}, {second.at, after}, until, budget_, params_);
    const auto cost = pair.climb(prices_, params_.first_target * static_cast<double>(single),
                                 is_first ? params_.steps : params_.more_steps, enough_ - extra,
                                 wanted, control_);
    return !cost || note(std::max(*cost + extra, single));
  }

  bool note(Amount cost) {
    least_ = std::min(least_.value_or(cost), cost);
    return *least_ > enough_;
  }

  const GraphFacts& facts_;
  const int64_t budget_, enough_;
  const SearchControl& control_;
  const PairParams& params_;
  Multipliers prices_;  // the best prices so far
  bool has_prices_ = false;
  std::optional<Amount> least_;
};

}  // namespace

std::optional<int64_t> cost_of_pair(const GraphFacts& facts, const Moment& first,
                                    const Moment& second, int64_t budget, int64_t enough,
                                    const SearchControl& control, const PairParams& params) {
  PairOfMoments pair(facts, budget, enough, control, params);
  for (const Moment::Realization& before : first.realizations) {
    for (const Moment::Realization& after : second.realizations) {
      if (!pair.look_at(before, after, second.first)) return pair.least();
    }
  }
  return pair.least();
}

}  // namespace reprise::internal::bound
