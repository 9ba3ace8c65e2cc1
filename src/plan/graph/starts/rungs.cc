//     row of values      v1 -> v2 -> v3 -> v4 -> v5 -> v6 -> v7 -> v8    each made from the last
//     rungs, length 3    ..................[v4]....................[v8]    kept at any price
//
// The cells of a recurrent network are needed from the last to the first. One instant does not see
// that values which are made again in such a long row have to be held until they are used. So a few
// values of the row, the rungs, are kept whatever the price of a byte. A rung stands where the row
// of ops, counted from what the cut of graph/bound/instant.h keeps at that price, has become longer
// than a given length.
//
// A set of values to keep is called a ladder. There are ladders for several lengths, at several
// prices. No ladder need be right for the whole network. So two of them are mixed, one for the
// first values and one for the last.
#include "plan/graph/starts/rungs.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <tuple>
#include <utility>

#include "plan/graph/bound/instant.h"
#include "plan/graph/schedule/ledger.h"
#include "plan/graph/starts/starts.h"

namespace reprise::internal::starts {

using bound::GraphBound;
using bound::Instant;
using common::GraphFacts;
using common::SearchControl;
using schedule::Schedule;
using schedule::ScheduleLedger;
using schedule::ScheduleModel;

namespace {

class Ladders {
 public:
  Ladders(const ScheduleModel& model, const Schedule& base, int32_t position, Instant& instant,
          int64_t budget, const StartParams& params)
      : use_(params.use),
        params_(params.rungs),
        model_(model),
        base_(base),
        position_(position),
        instant_(instant),
        price_(instant.price()),
        budget_(budget),
        ledger_(model) {}

  // Adds ladders of this length at several prices, by bisection for the lowest price at which the
  // ladder fits. With `small`, no rung is larger than the mean of the values that are dropped.
  void add(int length, bool small) {
    double low = 0, high = params_.largest_price * price_, next = price_;
    for (int k = 0; k < params_.halvings; ++k) {
      (fits(next, length, small) ? high : low) = next;
      next = high > 2 * low && low > 0 ? 2 * low : (low + high) / 2;
    }
  }

  // Returns the best mixes, then the best ladders as they are. From the ladders a search may end
  // elsewhere.
  std::vector<Schedule> take(const SearchControl& control) {
    std::vector<Ladder> mixes;
    for (const auto& [much, little] : pairs()) {
      if (!use_.mixes || control.out_of_time()) break;
      const int64_t target = std::max(budget_, little.peak);
      auto mix = mix_of(model_, base_, position_, {little.kept, much.kept}, target, std::nullopt,
                        use_.put_off);
      if (mix) mixes.push_back({{}, std::move(mix->schedule), mix->time, target});
    }
    std::vector<Schedule> schedules;
    for (std::vector<Ladder>* all : {&mixes, &found_}) {
      std::stable_sort(all->begin(), all->end(),
                       [&](const Ladder& a, const Ladder& b) { return cost(a) < cost(b); });
      for (size_t k = 0; k < std::min(all->size(), params_.returned); ++k) {
        schedules.push_back(std::move((*all)[k].schedule));
      }
    }
    return schedules;
  }

 private:
  struct Ladder {
    std::vector<ValueIndex> kept;
    Schedule schedule;
    int64_t time = 0, peak = 0;  // the peak of a mix is this or less
  };

  double cost(const Ladder& one) const {
    const auto over = static_cast<double>(std::max<int64_t>(0, one.peak - budget_));
    return static_cast<double>(one.time) + params_.excess * price_ * over;
  }

  // Returns whether an op of plain training after the position reads the value.
  bool is_needed(ValueIndex value) const {
    const int32_t interval = model_.is_input(value) ? -1 : model_.interval_at(value, position_);
    return interval >= 0 &&
           model_.intervals()[interval].end < static_cast<int32_t>(model_.plain().size());
  }

  // The mean size of the values that are dropped and needed.
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

  // Adds the rungs to what is kept. No rung is larger than `most`.
  void add_rungs(std::vector<char>& kept, int length, int64_t most) const {
    std::vector<int> row(kept.size(), 0);  // by value: ops since something that is kept
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
    // Many prices keep the same values.
    const auto known = std::ranges::find(found_, kept, &Ladder::kept);
    if (known != found_.end()) return known->peak <= budget_;
    Ladder best;
    for (const auto schedule_of : {kept_at, kept_or_put_off}) {
      if (schedule_of == kept_or_put_off && !use_.put_off) continue;
      Schedule schedule = schedule_of(model_, base_, position_, is_kept);
      if (!ledger_.assign(schedule)) continue;
      Ladder one{kept, std::move(schedule), ledger_.time(), ledger_.peak()};
      if (best.kept.empty() || cost(one) < cost(best)) best = std::move(one);
    }
    if (best.kept.empty()) return false;
    found_.push_back(std::move(best));
    return found_.back().peak <= budget_;
  }

  // Returns pairs of a faster ladder that is above the budget and a smaller one. The pairs that
  // promise the fastest mix come first.
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
    const size_t count = std::min(ranked.size(), params_.mixes);
    std::partial_sort(ranked.begin(), ranked.begin() + static_cast<std::ptrdiff_t>(count),
                      ranked.end());
    std::vector<std::pair<Ladder, Ladder>> some;
    for (size_t k = 0; k < count; ++k) {
      some.emplace_back(found_[std::get<1>(ranked[k])], found_[std::get<2>(ranked[k])]);
    }
    return some;
  }

  const StartSwitches& use_;
  const RungParams& params_;
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
                                           Bytes budget, const SearchControl& control,
                                           const StartParams& params) {
  if (bound.instant < 0 || bound.kept.empty()) return {};
  const Run& run = model.plain()[bound.instant];
  Instant instant(facts, run.op, model.graph().ops[run.op].variants[run.variant]);
  instant.least_time(budget.count());
  if (instant.price() <= 0) return {};
  Ladders ladders(model, base, bound.instant, instant, budget.count(), params);
  for (const int length : params.rungs.lengths) {
    for (const bool small : {true, false}) {
      if (!control.out_of_time()) ladders.add(length, small);
    }
  }
  return ladders.take(control);
}

}  // namespace reprise::internal::starts
