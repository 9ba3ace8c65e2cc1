// Rungs.
//
// One instant does not see that what is made again in a long row has to be held until it is used: the
// cells of a recurrent network, each made from the one before, are needed from the last to the first.
// So a few values of such a row are kept whatever the price of a byte: those where a row of ops, from what
// the cut of graph/bound/instant.h keeps at that price, has reached a given length. Rows of several lengths, at several
// prices, give ladders: sets of values to keep. None of them need be right for the whole network, so two of them are
// mixed, one for the first values and one for the last.
#include "plan/graph/starts/rungs.h"

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <utility>

#include "plan/graph/bound/instant.h"
#include "plan/graph/starts/starts.h"
#include "plan/graph/schedule/ledger.h"

namespace reprise::internal::starts {

using bound::GraphBound;
using bound::Instant;
using common::GraphFacts;
using common::SearchControl;
using schedule::Schedule;
using schedule::ScheduleLedger;
using schedule::ScheduleModel;

namespace {

constexpr int kLengths[] = {1, 2, 3, 4, 6, 8, 11, 16, 22, 32};  // of a row of ops
constexpr int kHalvings = 8;                                    // of the interval of prices
constexpr double kLargestPrice = 64;                            // times that of the bound
constexpr double kExcess = 2;    // price of a byte above the budget, times that of the bound
constexpr size_t kMixes = 8;     // pairs of ladders
constexpr size_t kReturned = 5;  // mixes, and ladders as they are

class Ladders {
 public:
  Ladders(const ScheduleModel& model, const Schedule& base, int32_t position, Instant& instant,
          int64_t budget)
      : model_(model),
        base_(base),
        position_(position),
        instant_(instant),
        price_(instant.price()),
        budget_(budget),
        ledger_(model) {}

  // Rows of this length at several prices: bisection for the lowest one that fits. `small`: none of the rungs is
  // larger than what is dropped is in the mean.
  void add(int length, bool small) {
    double low = 0, high = kLargestPrice * price_, next = price_;
    for (int k = 0; k < kHalvings; ++k) {
      (fits(next, length, small) ? high : low) = next;
      next = high > 2 * low && low > 0 ? 2 * low : (low + high) / 2;
    }
  }

  // The best of mixes, and the best as they are: from these a search may end elsewhere.
  std::vector<Schedule> take(const SearchControl& control) {
    std::vector<Ladder> mixes;
    for (const auto& [much, little] : pairs()) {
      if (control.out_of_time()) break;
      const int64_t target = std::max(budget_, little.peak);
      auto mix = mix_of(model_, base_, position_, {little.kept, much.kept}, target);
      if (mix) mixes.push_back({{}, std::move(mix->schedule), mix->time, target});
    }
    std::vector<Schedule> schedules;
    for (std::vector<Ladder>* all : {&mixes, &found_}) {
      std::stable_sort(all->begin(), all->end(),
                       [&](const Ladder& a, const Ladder& b) { return cost(a) < cost(b); });
      for (size_t k = 0; k < std::min(all->size(), kReturned); ++k) {
        schedules.push_back(std::move((*all)[k].schedule));
      }
    }
    return schedules;
  }

 private:
  struct Ladder {
    std::vector<ValueIndex> kept;
    Schedule schedule;
    int64_t time = 0, peak = 0;  // of a mix: at most
  };

  double cost(const Ladder& one) const {
    const auto over = static_cast<double>(std::max<int64_t>(0, one.peak - budget_));
    return static_cast<double>(one.time) + kExcess * price_ * over;
  }

  // Whether an op of plain training after the position reads it.
  bool is_needed(ValueIndex value) const {
    const int32_t interval = model_.is_input(value) ? -1 : model_.interval_at(value, position_);
    return interval >= 0 && model_.intervals()[interval].end < static_cast<int32_t>(model_.plain().size());
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

  // Keeps more: values that need not be larger than `most`.
  void add_rungs(std::vector<char>& kept, int length, int64_t most) const {
    std::vector<int> row(kept.size(), 0);  // of ops from what is kept to this value
    for (int32_t p = 0; p < position_; ++p) {
      const Run& run = model_.plain()[p];
      const Variant& variant = model_.graph().ops[run.op].variants[run.variant];
      int longest = 0;
      for (const ValueIndex value : variant.reads) longest = std::max(longest, row[value]);
      for (const ValueIndex value : variant.writes) {
        row[value] = kept[value] ? 0 : longest + 1;
        if (row[value] <= length || !is_needed(value) || model_.bytes(value) > most) continue;
        kept[value] = 1;
        row[value] = 0;
      }
    }
  }

  bool fits(double price, int length, bool small) {
    std::vector<double> prices(model_.graph().values.size(), 0);
    for (size_t v = 0; v < prices.size(); ++v) {
      const auto value = static_cast<ValueIndex>(v);
      if (!model_.is_input(value)) prices[v] = price * static_cast<double>(model_.bytes(value));
    }
    std::vector<char> is_kept(prices.size(), 0);
    for (const ValueIndex value : instant_.cheapest(prices)) is_kept[value] = 1;
    add_rungs(is_kept, length, small ? mean_bytes(is_kept) : INT64_MAX);
    std::vector<ValueIndex> kept;
    for (size_t v = 0; v < is_kept.size(); ++v) {
      if (is_kept[v]) kept.push_back(static_cast<ValueIndex>(v));
    }
    // Many prices keep the same.
    const auto known = std::ranges::find(found_, kept, &Ladder::kept);
    if (known != found_.end()) return known->peak <= budget_;
    Ladder best;
    for (const auto schedule_of : {kept_at, kept_or_put_off}) {
      Schedule schedule = schedule_of(model_, base_, position_, is_kept);
      if (!ledger_.assign(schedule)) continue;
      Ladder one{kept, std::move(schedule), ledger_.time(), ledger_.peak()};
      if (best.kept.empty() || cost(one) < cost(best)) best = std::move(one);
    }
    if (best.kept.empty()) return false;
    found_.push_back(std::move(best));
    return found_.back().peak <= budget_;
  }

  // Of a faster ladder that is above the budget and a smaller one, those first that promise the fastest mix.
  std::vector<std::pair<Ladder, Ladder>> pairs() const {
    std::vector<std::tuple<double, size_t, size_t>> ranked;
    for (size_t a = 0; a < found_.size(); ++a) {
      for (size_t b = 0; b < found_.size(); ++b) {
        const Ladder &much = found_[a], &little = found_[b];
        if (much.peak <= budget_ || little.peak >= much.peak || little.time <= much.time) continue;
        const auto share = static_cast<double>(std::max(budget_, little.peak) - little.peak) /
                           static_cast<double>(much.peak - little.peak);
        ranked.emplace_back(cost(little) + share * static_cast<double>(much.time - little.time), a,
                            b);
      }
    }
    const size_t count = std::min(ranked.size(), kMixes);
    std::partial_sort(ranked.begin(), ranked.begin() + static_cast<std::ptrdiff_t>(count),
                      ranked.end());
    std::vector<std::pair<Ladder, Ladder>> some;
    for (size_t k = 0; k < count; ++k) {
      some.emplace_back(found_[std::get<1>(ranked[k])], found_[std::get<2>(ranked[k])]);
    }
    return some;
  }

  const ScheduleModel& model_;
  const Schedule& base_;
  const int32_t position_;
  Instant& instant_;
  const double price_;
  const int64_t budget_;
  ScheduleLedger ledger_;
  std::vector<Ladder> found_;
};

}  // namespace

std::vector<Schedule> schedules_with_rungs(const ScheduleModel& model, const Schedule& base,
                                           const GraphFacts& facts, const GraphBound& bound,
                                           Bytes budget, const SearchControl& control) {
  if (bound.instant < 0 || bound.kept.empty()) return {};
  const Run& run = model.plain()[bound.instant];
  Instant instant(facts, run.op, model.graph().ops[run.op].variants[run.variant]);
  instant.least_time(budget.count());
  if (instant.price() <= 0) return {};
  Ladders ladders(model, base, bound.instant, instant, budget.count());
  for (const int length : kLengths) {
    for (const bool small : {true, false}) {
      if (!control.out_of_time()) ladders.add(length, small);
    }
  }
  return ladders.take(control);
}

}  // namespace reprise::internal::starts
