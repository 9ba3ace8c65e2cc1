// Rungs.
//
// One instant does not see that what is made again in a long row has to be held until it is used: the
// cells of a recurrent network, each made from the one before, are needed from the last to the first.
// So a few values of such a row are kept whatever the price of a byte: those where a row of dropped
// values has reached a given length. The rest is the cut of graph_instant.h again, at the lowest
// price at which the schedule, walked, fits.
#include "plan/graph_rungs.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "plan/graph_instant.h"
#include "plan/graph_starts.h"
#include "plan/schedule_ledger.h"

namespace reprise::internal {
namespace {

constexpr int kLengths[] = {1, 2, 3, 5, 8};  // of a row of dropped values
constexpr int kHalvings = 8;                 // of the interval of prices
constexpr double kLargestPrice = 64;         // times that of the bound

class Rungs {
 public:
  Rungs(const ScheduleModel& model, int32_t position, int64_t budget)
      : model_(model), position_(position), budget_(budget), ledger_(model) {}

  // Values to keep whatever it costs, beside those that are kept.
  std::vector<char> rungs(const std::vector<char>& kept, int length) const {
    std::vector<char> rungs(kept.size(), 0);
    std::vector<int> row(kept.size(), 0);  // of values that are dropped, up to this one
    for (int32_t p = 0; p < position_; ++p) {
      const Run& run = model_.plain()[p];
      const Variant& variant = model_.graph().ops[run.op].variants[run.variant];
      int longest = 0;
      for (const ValueIndex value : variant.reads) longest = std::max(longest, row[value]);
      for (const ValueIndex value : variant.writes) {
        const bool dropped = !kept[value] && is_needed(value);
        row[value] = kept[value] ? 0 : longest + dropped;
        if (!dropped || row[value] <= length) continue;
        rungs[value] = 1;
        row[value] = 0;
      }
    }
    return rungs;
  }

  // The fastest within the budget that bisection of the price finds.
  std::optional<Mix> fitting(Instant& instant, double price, const std::vector<char>& rungs) {
    std::optional<Mix> best;
    double low = 0, high = kLargestPrice * price;
    double next = price;
    for (int k = 0; k < kHalvings; ++k) {
      std::vector<double> prices(rungs.size());
      for (size_t v = 0; v < rungs.size(); ++v) {
        const auto bytes = static_cast<double>(model_.bytes(static_cast<ValueIndex>(v)));
        prices[v] = rungs[v] ? 0 : next * bytes;
      }
      std::vector<char> kept(rungs);
      for (const ValueIndex value : instant.cheapest(prices)) kept[value] = 1;
      Schedule schedule = kept_at(model_, position_, kept);
      const bool fits = ledger_.assign(schedule) && ledger_.peak() <= budget_;
      if (fits && (!best || ledger_.time() < best->time)) {
        best = {std::move(schedule), ledger_.time()};
      }
      (fits ? high : low) = next;
      next = high > 2 * low && low > 0 ? 2 * low : (low + high) / 2;
    }
    return best;
  }

 private:
  // Whether an op of plain training after the position reads it.
  bool is_needed(ValueIndex value) const {
    const int32_t gap = model_.is_input(value) ? -1 : model_.gap_at(value, position_);
    return gap >= 0 && model_.gaps()[gap].end < static_cast<int32_t>(model_.plain().size());
  }

  const ScheduleModel& model_;
  const int32_t position_;
  const int64_t budget_;
  ScheduleLedger ledger_;
};

}  // namespace

std::vector<Schedule> schedules_with_rungs(const ScheduleModel& model, const GraphFacts& facts,
                                           const GraphBound& bound, Bytes budget,
                                           const SearchControl& control) {
  std::vector<Schedule> schedules;
  if (bound.instant < 0 || bound.kept.empty()) return schedules;
  const int32_t position = bound.instant;
  const Run& run = model.plain()[position];
  Instant instant(facts, run.op, model.graph().ops[run.op].variants[run.variant]);
  instant.least_time(budget.count());
  if (instant.price() <= 0) return schedules;
  std::vector<char> kept(model.graph().values.size(), 0);
  for (const ValueIndex value : bound.kept.front()) kept[value] = 1;
  Rungs ladder(model, position, budget.count());
  for (const int length : kLengths) {
    if (control.out_of_time()) break;
    std::optional<Mix> found = ladder.fitting(instant, instant.price(), ladder.rungs(kept, length));
    if (found) schedules.push_back(std::move(found->schedule));
  }
  return schedules;
}

}  // namespace reprise::internal
