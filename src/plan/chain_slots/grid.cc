#include "plan/chain_slots/grid.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace reprise::internal::chain_slots {

using chain::ChainModel;
using chain::KeepOption;

namespace {

int64_t remainder(int64_t a, int64_t unit) {
  const int64_t r = a % unit;
  return r < 0 ? r + unit : r;
}

// Returns the option whose arguments fall on points: the first of the fastest options.
const KeepOption& preferred(const ChainModel& model, size_t i) {
  return *std::min_element(
      model.options[i].begin(), model.options[i].end(),
      [](const KeepOption& a, const KeepOption& b) { return a.cost < b.cost; });
}

int64_t taken(const ChainModel& model, const KeepOption& option, size_t i, bool pinned) {
  return option.saved + model.x[i + 1] - model.given_back(i, option, pinned);
}

// Counts how often each number of bytes is taken.
std::map<int64_t, int64_t> amounts(const ChainModel& model) {
  std::map<int64_t, int64_t> counts;
  for (size_t i = 0; i < model.stages; ++i) {
    ++counts[model.x[i + 1]];
    ++counts[model.weights(i, i)];
    for (const KeepOption& option : model.options[i]) {
      ++counts[taken(model, option, i, true)];
      ++counts[std::abs(taken(model, option, i, false))];
    }
  }
  counts.erase(0);
  return counts;
}

// UnitChoice tries units up to a quarter above `smallest` that nearly divide one of the amounts,
// and takes the one that loses least over all amounts. Every plan takes multiples of the greatest
// common divisor, so a smaller unit would not help.
class UnitChoice {
 public:
  UnitChoice(const ChainModel& model, Rounding rounding)
      : counts_(amounts(model)), rounding_(rounding) {
    for (const auto& [bytes, count] : counts_) divisor_ = std::gcd(divisor_, bytes);
    divisor_ = std::max<int64_t>(divisor_, 1);
  }

  int64_t best(int64_t smallest) const {
    if (smallest / kWorthExact < divisor_) return divisor_;
    int64_t best = smallest;
    double least = waste(smallest);
    size_t tried = 0;
    for (const auto& [bytes, count] : counts_) {
      const int64_t parts = bytes / smallest;
      for (int64_t n = std::max<int64_t>(parts - kParts, 1); n <= parts; ++n) {
        const int64_t unit = rounding_ == Rounding::kUp ? (bytes + n - 1) / n : bytes / n;
        if (unit < smallest || unit - smallest > smallest / 4) continue;
        const double lost = waste(unit);
        if (lost < least) best = unit, least = lost;
      }
      if (++tried == kAmounts) break;
    }
    return best;
  }
  bool divides_all(int64_t unit) const { return divisor_ % unit == 0; }

 private:
  // A unit that rounds nothing at all is worth up to this many times the slots.
  static constexpr int64_t kWorthExact = 3;
  static constexpr int64_t kParts = 16;    // units tried for each amount
  static constexpr size_t kAmounts = 256;  // number of amounts that units are made from

  double waste(int64_t unit) const {
    double sum = 0;
    for (const auto& [bytes, count] : counts_) {
      const int64_t over = bytes % unit;
      const int64_t lost = over == 0 || rounding_ == Rounding::kDown ? over : unit - over;
      sum += static_cast<double>(lost) * static_cast<double>(count);
    }
    return sum;
  }

  std::map<int64_t, int64_t> counts_;
  Rounding rounding_;
  int64_t divisor_ = 0;
};

}  // namespace

SlotGrid::SlotGrid(const ChainModel& model, int64_t memory, int64_t slots, Rounding rounding,
                   bool shared)
    : rounding_(rounding) {
  const UnitChoice choice(model, rounding);
  unit_ = Divider(choice.best(std::max<int64_t>(memory / std::max<int64_t>(slots, 1), 1)));
  exact_ = choice.divides_all(unit());
  // There is one point more than needed, for cells of a small phase.
  last_ = static_cast<int32_t>(memory / unit()) + 1;
  place_phases(model, memory, shared);
}

void SlotGrid::place_phases(const ChainModel& model, int64_t memory, bool shared) {
  const size_t stages = model.stages;
  for (std::vector<int64_t>& row : from_) row.assign(stages + 2, 0);
  for (size_t i = stages; i-- > 0;) {
    const KeepOption& option = preferred(model, i);
    for (const bool pinned : {false, true}) {
      from_[pinned][i] = from_[option.reads_output][i + 1] + taken(model, option, i, pinned);
    }
  }
  for (size_t l = 0; l <= stages; ++l) {
    const bool pinned = l < stages && preferred(model, l).reads_output;
    to_.push_back(shared ? -from_[pinned][std::min(l + 1, stages)] : model.weight_gradients[l + 1]);
  }
  const int64_t root = remainder(memory - from_[true][0] - to_[stages], unit());
  for (std::vector<int64_t>& row : from_) {
    for (int64_t& sum : row) sum = remainder(sum, unit());
  }
  for (int64_t& sum : to_) sum = remainder(remainder(sum, unit()) + root, unit());
}

int32_t SlotGrid::first_point(int64_t bytes, int64_t phase) const {
  if (bytes <= phase) return 0;
  return static_cast<int32_t>(std::min<int64_t>((bytes - phase - 1) / unit() + 1, last_ + 1));
}

int32_t SlotGrid::point_below(int64_t bytes, int64_t phase) const {
  if (bytes < phase) return -1;
  return static_cast<int32_t>(std::min<int64_t>((bytes - phase) / unit(), last_));
}

}  // namespace reprise::internal::chain_slots
