// When a search must stop, and how it reports how far it is.
#pragma once

#include <chrono>
#include <string>

#include "reprise/model/units.h"
#include "reprise/plan/plan.h"

namespace reprise::internal {

class SearchControl {
 public:
  // Keeps a reference to the options. The clock starts now.
  SearchControl(const PlanOptions& options, std::string planner)
      : options_(options), planner_(std::move(planner)), start_(Clock::now()) {}

  bool out_of_time() const { return elapsed(start_) >= options_.time_limit.count(); }

  // Calls the observer, at most some twenty times a second. Its exceptions pass through.
  void report(double fraction) {
    constexpr int64_t kInterval = 50'000'000;
    if (!options_.observer || elapsed(last_report_) < kInterval) return;
    last_report_ = Clock::now();
    options_.observer({"plan", fraction, planner_});
  }

 private:
  using Clock = std::chrono::steady_clock;

  static int64_t elapsed(Clock::time_point since) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - since).count();
  }

  const PlanOptions& options_;
  std::string planner_;
  Clock::time_point start_;
  Clock::time_point last_report_{};
};

}  // namespace reprise::internal
