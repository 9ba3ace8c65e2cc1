// Rungs.
//
// One instant does not see that what is made again in a long row has to be held until it is used: the
// cells of a recurrent network, each made from the one before, are needed from the last to the first.
// So a few values of such a row are kept whatever the price of a byte: those where a row of ops
// has reached a given length. The rest is the cut of graph_instant.h again, at the lowest
// price at which the schedule, walked, fits.
#include "plan/graph_rungs.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <utility>

#include "plan/graph_instant.h"
#include "plan/graph_starts.h"
#include "plan/schedule_ledger.h"

namespace reprise::internal {
namespace {

constexpr int kLengths[] = {1, 2, 4, 8, 16, 32};  // of a row of ops
constexpr int kHalvings = 8;                      // of the interval of prices
constexpr double kLargestPrice = 64;              // times that of the bound
constexpr size_t kReturned = 6;                   // schedules
constexpr double kExcess = 2;                     // times the price of the bound
constexpr int kParts = 64;                        // to which the place of two prices is found

class Rungs {
 public:
  Rungs(const ScheduleModel& model, const Schedule& base, int32_t position, int64_t budget)
      : model_(model), base_(base), position_(position), budget_(budget), ledger_(model) {}

  // Values to keep whatever it costs, beside those that are kept: none larger than `most`.
  std::vector<char> rungs(const std::vector<char>& kept, int length, int64_t most) const {
    std::vector<char> rungs(kept.size(), 0);
    std::vector<int> row(kept.size(), 0);  // of ops from what is kept to this value
    for (int32_t p = 0; p < position_; ++p) {
      const Run& run = model_.plain()[p];
      const Variant& variant = model_.graph().ops[run.op].variants[run.variant];
      int longest = 0;
      for (const ValueIndex value : variant.reads) longest = std::max(longest, row[value]);
      for (const ValueIndex value : variant.writes) {
        const bool can_be_rung = is_needed(value) && model_.bytes(value) <= most;
        row[value] = kept[value] ? 0 : longest + 1;
        if (row[value] <= length || !can_be_rung) continue;
        rungs[value] = 1;
        row[value] = 0;
      }
    }
    return rungs;
  }

  struct Found {
    Mix best;                  // the fastest within the budget, otherwise the smallest
    int64_t peak = INT64_MAX;  // 0: within the budget
    double low = 0, high = 0;  // the second one fits
    std::vector<char> rungs;
  };

  // Bisection of the price.
  Found at_one_price(Instant& instant, double price, std::vector<char> rungs) {
    Found found;
    found.high = kLargestPrice * price;
    found.rungs = std::move(rungs);
    double next = price;
    for (int k = 0; k < kHalvings; ++k) {
      (fits(instant, found, next, next, 0) ? found.high : found.low) = next;
      next = found.high > 2 * found.low && found.low > 0 ? 2 * found.low
                                                         : (found.low + found.high) / 2;
    }
    return found;
  }

  // How many of the first values, or of the last, must have the higher of the two prices.
  void mix_prices(Instant& instant, Found& found) {
    for (const bool high_first : {false, true}) {
      int32_t most = high_first ? position_ : 0, least = position_ - most;
      while (std::abs(most - least) > 1 + position_ / kParts) {
        const int32_t middle = least + (most - least) / 2;
        const bool fit = high_first ? fits(instant, found, found.high, found.low, middle)
                                    : fits(instant, found, found.low, found.high, middle);
        (fit ? most : least) = middle;
      }
    }
  }

  // Of the values that are dropped and needed.
  int64_t mean_bytes(const std::vector<char>& kept) const {
    int64_t bytes = 0, count = 0;
    for (size_t v = 0; v < kept.size(); ++v) {
      const auto value = static_cast<ValueIndex>(v);
      if (kept[v] || !is_needed(value)) continue;
      bytes += model_.bytes(value);
      ++count;
    }
    return count == 0 ? 0 : bytes / count;
  }

 private:
  bool fits(Instant& instant, Found& found, double before, double after, int32_t position) {
    const std::vector<char>& rungs = found.rungs;
    std::vector<double> prices(rungs.size(), 0);
    for (size_t v = 0; v < rungs.size(); ++v) {
      const auto value = static_cast<ValueIndex>(v);
      if (rungs[v] || model_.is_input(value)) continue;
      const int32_t first = model_.first_gap(value);
      const bool is_before =
          first < model_.first_gap(value + 1) && model_.gaps()[first].begin < position;
      prices[v] = (is_before ? before : after) * static_cast<double>(model_.bytes(value));
    }
    std::vector<char> kept(rungs);
    for (const ValueIndex value : instant.cheapest(prices)) kept[value] = 1;
    bool any = false;
    for (const auto schedule_of : {kept_at, kept_or_put_off}) {
      Schedule schedule = schedule_of(model_, base_, position_, kept);
      if (!ledger_.assign(schedule)) continue;
      const bool fit = ledger_.peak() <= budget_;
      any |= fit;
      const std::pair rank(fit ? 0 : ledger_.peak(), ledger_.time());
      if (rank < std::pair(found.peak, found.best.time)) {
        found.peak = rank.first;
        found.best = {std::move(schedule), rank.second};
      }
    }
    return any;
  }

  // Whether an op of plain training after the position reads it.
  bool is_needed(ValueIndex value) const {
    const int32_t gap = model_.is_input(value) ? -1 : model_.gap_at(value, position_);
    return gap >= 0 && model_.gaps()[gap].end < static_cast<int32_t>(model_.plain().size());
  }

  const ScheduleModel& model_;
  const Schedule& base_;
  const int32_t position_;
  const int64_t budget_;
  ScheduleLedger ledger_;
};

}  // namespace

std::vector<Schedule> schedules_with_rungs(const ScheduleModel& model, const Schedule& base,
                                           const GraphFacts& facts, const GraphBound& bound,
                                           Bytes budget, const SearchControl& control) {
  std::vector<Schedule> schedules;
  if (bound.instant < 0 || bound.kept.empty()) return schedules;
  const int32_t position = bound.instant;
  const Run& run = model.plain()[position];
  Instant instant(facts, run.op, model.graph().ops[run.op].variants[run.variant]);
  instant.least_time(budget.count());
  if (instant.price() <= 0) return schedules;
  std::vector<char> kept(model.graph().values.size(), 0);
  for (const ValueIndex value : bound.kept.front()) kept[value] = 1;
  Rungs ladder(model, base, position, budget.count());
  std::vector<Rungs::Found> found;
  const int64_t small = ladder.mean_bytes(kept);
  for (const int length : kLengths) {
    for (const int64_t most : {small, INT64_MAX}) {
      if (control.out_of_time()) break;
      found.push_back(
          ladder.at_one_price(instant, instant.price(), ladder.rungs(kept, length, most)));
    }
  }
  const auto cost = [&](const Rungs::Found& one) {
    const auto over = static_cast<double>(std::max<int64_t>(0, one.peak - budget.count()));
    return static_cast<double>(one.best.time) + kExcess * instant.price() * over;
  };
  std::erase_if(found, [](const Rungs::Found& one) { return one.peak == INT64_MAX; });
  std::stable_sort(found.begin(), found.end(),
                   [&](const Rungs::Found& a, const Rungs::Found& b) { return cost(a) < cost(b); });
  for (size_t k = 0; k < std::min(found.size(), kReturned); ++k) {
    if (found[k].peak == 0 && !control.out_of_time()) ladder.mix_prices(instant, found[k]);
    schedules.push_back(std::move(found[k].best.schedule));
  }
  return schedules;
}

}  // namespace reprise::internal
