#include "plan/single_budgets.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

#include "plan/common/search_control.h"

namespace reprise::internal {

namespace {

class SingleBudgets {
 public:
  SingleBudgets(const std::function<PlanResult(const PlanOptions&)>& ask,
                const PlanOptions& options, Bytes most)
      : ask_(ask), options_(options), control_(options, options.planner), most_(most.count()) {
    // The planner's own progress starts again at every budget.
    if (options.observer) options_.observer = [this](const Progress&) { report(); };
  }

  Frontier take() {
    try_budget(most_);
    int64_t low = 0;
    if (const std::optional<Bytes> smallest = try_budget(0)) {
      low = smallest->count();
      try_budget(low);
    }
    for (int64_t parts = 2; parts < kMostSingleBudgets; parts *= 2) {
      for (int64_t k = 1; k < parts; k += 2) {
        if (control_.out_of_time()) return curve();
        try_budget(most_ - (most_ - low) / parts * (parts - k));
      }
    }
    return curve();
  }

 private:
  struct Sample {
    int64_t budget = 0;  // the largest for which this plan was the answer
    Nanos time, bound;
  };

  void report() {
    control_.report(static_cast<double>(asked_) / static_cast<double>(kMostSingleBudgets));
  }

  // Returns whether there is nothing to find for a budget.
  bool known(int64_t budget) const {
    const auto above = samples_.upper_bound(budget);
    if (above == samples_.begin()) return false;
    const Sample& below = std::prev(above)->second;
    return below.budget >= budget || (above != samples_.end() && below.time <= above->second.time);
  }

  // Plans at a budget. Returns the smallest budget for which there is a plan, if the answer names
  // it.
  std::optional<Bytes> try_budget(int64_t budget) {
    if (known(budget)) return {};
    PlanOptions options = options_;
    options.budget = Bytes(budget);
    const double share = 1.0 / std::max(1, kMostSingleBudgets - asked_);
    options.time_limit = control_.part(share).time_left();
    ++asked_;
    const PlanResult found = ask_(options);
    if (curve_.planner.empty()) {
      curve_.planner = found.planner;
      curve_.schedule_class = found.schedule_class;
    }
    if (!found.plan) return found.smallest_budget;
    const int64_t peak = found.plan->peak.count();
    const Nanos bound =
        found.schedule_class == curve_.schedule_class ? found.lower_bound : Nanos(0);
    const auto [at, fresh] = samples_.try_emplace(peak, Sample{budget, found.plan->time, bound});
    if (!fresh) {
      at->second.budget = std::max(at->second.budget, budget);
      at->second.time = std::min(at->second.time, found.plan->time);
      at->second.bound = std::max(at->second.bound, bound);
    }
    return Bytes(budget);
  }

  // A bound for a larger budget holds for a smaller one, too.
  Frontier curve() {
    Nanos bound(0);
    for (auto at = samples_.rbegin(); at != samples_.rend(); ++at) {
      bound = std::max(bound, at->second.bound);
      at->second.bound = bound;
    }
    for (const auto& [peak, sample] : samples_) {
      if (!curve_.points.empty() && sample.time >= curve_.points.back().time) continue;
      curve_.points.push_back(
          {Bytes(peak), Bytes(peak), sample.time, std::min(sample.bound, sample.time)});
    }
    return std::move(curve_);
  }

  const std::function<PlanResult(const PlanOptions&)>& ask_;
  PlanOptions options_;
  common::SearchControl control_;
  const int64_t most_;
  int asked_ = 0;
  std::map<int64_t, Sample> samples_;  // by peak
  Frontier curve_;
};

}  // namespace

Frontier curve_of_single_budgets(const std::function<PlanResult(const PlanOptions&)>& ask,
                                 const PlanOptions& options, Bytes most) {
  return SingleBudgets(ask, options, most).take();
}

}  // namespace reprise::internal
