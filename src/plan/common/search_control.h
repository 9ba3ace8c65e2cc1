// SearchControl says when a search must stop, and reports how far the search is.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <stop_token>
#include <string>
#include <utility>

#include "reprise/model/observer.h"
#include "reprise/model/units.h"
#include "reprise/plan/options.h"

namespace reprise::internal::common {

// Returns this share (0..1) of a time.
inline Nanos part_of(Nanos time, double share) {
  return Nanos(static_cast<int64_t>(share * static_cast<double>(time.count())));
}

class SearchControl {
 public:
  // The clock starts with the construction.
  SearchControl(const PlanOptions& options, std::string planner)
      : observer_(options.observer),
        stop_(options.stop),
        planner_(std::move(planner)),
        end_(Clock::now() + std::chrono::nanoseconds(options.time_limit.count())) {}

  bool out_of_time() const { return stop_.stop_requested() || Clock::now() >= end_; }

  // Returns the time until the search must stop.
  Nanos time_left() const {
    const auto left = end_ - Clock::now();
    return Nanos(std::max<int64_t>(0, std::chrono::nanoseconds(left).count()));
  }

  // Returns the share of the time from `begin` to the end of the search that is over.
  double share_over(std::chrono::steady_clock::time_point begin) const {
    const std::chrono::duration<double> over = Clock::now() - begin, all = end_ - begin;
    return all.count() <= 0 ? 1 : std::min(1.0, over / all);
  }

  // Returns the same search with only this share (0..1) of the time that is left.
  SearchControl part(double share) const {
    SearchControl control = *this;
    const auto now = Clock::now();
    if (end_ > now && end_ != Clock::time_point::max()) {
      control.end_ = now + std::chrono::duration_cast<Clock::duration>((end_ - now) * share);
    }
    return control;
  }

  // Returns the same search with at least this much time, for work that must not be left undone.
  SearchControl at_least(std::chrono::nanoseconds time) const {
    SearchControl control = *this;
    control.end_ = std::max(control.end_, Clock::now() + time);
    return control;
  }

  // Returns the same search with at most this much time.
  SearchControl at_most(std::chrono::nanoseconds time) const {
    SearchControl control = *this;
    control.end_ = std::min(control.end_, Clock::now() + time);
    return control;
  }

  // Returns the same search without a time limit, for work that is too short to count. It is not
  // stopped either.
  SearchControl untimed() const {
    SearchControl control = *this;
    control.end_ = Clock::time_point::max();
    control.stop_ = {};
    return control;
  }

  // Calls the observer, at most some twenty times a second. Exceptions of the observer pass
  // through.
  void report(double fraction) {
    constexpr auto kInterval = std::chrono::milliseconds(50);
    if (!observer_) return;
    const auto now = Clock::now();
    if (now - last_report_ < kInterval) return;
    last_report_ = now;
    observer_({"plan", fraction, planner_});
  }

 private:
  using Clock = std::chrono::steady_clock;

  Observer observer_;
  std::stop_token stop_;
  std::string planner_;
  Clock::time_point end_;
  Clock::time_point last_report_{};
};

}  // namespace reprise::internal::common
