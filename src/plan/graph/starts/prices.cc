// Prices of memory over the backward pass, by subgradients.
//
//     price of a byte      parts of the backward pass, after the instant of the bound
//     in each part         |--- 1 ---|--- 2 ---|--- 3 ---|
//     value read in 1       p1                               p1 is paid for each of its bytes
//     value read in 3       p1   +    p2   +    p3           it is held longer, and costs more
//
// At the instant of the bound, every value that is needed later is kept or made again. The cut of
// graph/bound/instant.h finds the cheapest division at these prices. The schedule that keeps just
// these values is walked. Where its level is above the budget the price rises, and where it is
// below the price falls (B. T. Polyak, "Minimization of unsmooth functionals", USSR Computational
// Mathematics 9(3), 1969; the steps follow a fixed rule). The bound knows one instant. These prices
// also know that a value that is made again needs room, and when.
#include "plan/graph/starts/prices.h"

#include <algorithm>
#include <cmath>
#include <optional>
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

class Prices {
 public:
  Prices(const ScheduleModel& model, const Schedule& base, int32_t from, int64_t budget,
         const StartParams& params)
      : use_(params.use),
        params_(params.prices),
        parts_(params.prices.parts),
        model_(model),
        base_(base),
        from_(from),
        budget_(budget),
        ledger_(model),
        price_(parts_, 0) {}

  struct Candidate {
    double cost;
    Schedule schedule;
  };

  void run(Instant& instant, double price, double over, const SearchControl& control,
           std::vector<Candidate>& candidates) {
    price_.assign(parts_, 0);
    price_[0] = price;
    for (int round = 0; round < params_.rounds && !control.out_of_time(); ++round) {
      std::vector<char> is_kept(model_.graph().values.size(), 0);
      for (const ValueIndex value : instant.cheapest(prices_of_values())) is_kept[value] = 1;
      for (const auto schedule_of : {kept_or_put_off, kept_at}) {
        if (schedule_of == kept_or_put_off && !use_.put_off) continue;
        Schedule schedule = schedule_of(model_, base_, from_, is_kept);
        if (!ledger_.assign(schedule)) return;
        const auto excess = static_cast<double>(std::max<int64_t>(0, ledger_.peak() - budget_));
        const double cost = static_cast<double>(ledger_.time()) + over * excess;
        candidates.push_back({cost, std::move(schedule)});
      }
      change_prices(params_.step * price / std::sqrt(1 + round));
    }
  }

 private:
  size_t part_of(int32_t position) const {
    const auto length = static_cast<int64_t>(model_.plain().size()) + 1 - from_;
    return static_cast<size_t>((position - from_) * static_cast<int64_t>(parts_) / length);
  }

  // By value: the price of keeping it from the instant until it is used.
  std::vector<double> prices_of_values() const {
    std::vector<double> sums(price_);
    for (size_t k = 1; k < parts_; ++k) sums[k] += sums[k - 1];
    std::vector<double> prices(model_.graph().values.size(), 0);
    for (size_t v = 0; v < prices.size(); ++v) {
      const auto value = static_cast<ValueIndex>(v);
      const int32_t interval = model_.is_input(value) ? -1 : model_.interval_at(value, from_);
      if (interval < 0) continue;
      prices[v] = static_cast<double>(model_.bytes(value)) *
                  sums[part_of(model_.intervals()[interval].end)];
    }
    return prices;
  }

  void change_prices(double step) {
    const std::vector<int64_t> levels = ledger_.levels();
    std::vector<int64_t> peaks(parts_, 0);
    for (size_t p = static_cast<size_t>(from_); p < levels.size(); ++p) {
      int64_t& peak = peaks[part_of(static_cast<int32_t>(p))];
      peak = std::max(peak, levels[p]);
    }
    for (size_t k = 0; k < parts_; ++k) {
      const double excess = static_cast<double>(peaks[k] - budget_) /
                            static_cast<double>(std::max<int64_t>(1, budget_));
      price_[k] = std::max(0.0, price_[k] + step * excess);
    }
  }

  const StartSwitches& use_;
  const PriceParams& params_;
  const size_t parts_;
  const ScheduleModel& model_;
  const Schedule& base_;
  const int32_t from_;
  const int64_t budget_;
  ScheduleLedger ledger_;
  std::vector<double> price_;  // by part
};

}  // namespace

std::vector<Schedule> schedules_at_prices(const ScheduleModel& model, const Schedule& base,
                                          const GraphFacts& facts, const GraphBound& bound,
                                          Bytes budget, double over, const SearchControl& control,
                                          const StartParams& params) {
  if (bound.instant < 0) return {};
  const int32_t from = bound.instant;
  const Run& run = model.plain()[from];
  Instant instant(facts, run.op, model.graph().ops[run.op].variants[run.variant]);
  Prices prices(model, base, from, budget.count(), params);
  std::vector<Prices::Candidate> candidates;
  std::optional<Mix> mixed;
  for (const int64_t share : params.prices.shares) {
    if (control.out_of_time()) break;
    instant.least_time(budget.count() / 64 * share);
    if (instant.price() <= 0) continue;
    if (params.use.mixes && !mixed) {
      mixed = mix_of(model, base, from, instant.kept(), budget.count(), std::nullopt,
                     params.use.put_off);
    }
    if (mixed && mixed->time - bound.time.count() <= bound.time.count() / params.prices.near) break;
    prices.run(instant, instant.price(), over, control, candidates);
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const auto& a, const auto& b) { return a.cost < b.cost; });
  std::vector<Schedule> schedules;
  if (mixed) schedules.push_back(std::move(mixed->schedule));
  for (auto& candidate : candidates) {
    if (schedules.size() == params.prices.returned) break;
    if (!schedules.empty() && schedules.back() == candidate.schedule) continue;
    schedules.push_back(std::move(candidate.schedule));
  }
  return schedules;
}

}  // namespace reprise::internal::starts
