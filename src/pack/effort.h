// An Effort says how much work a search may still do. Work is counted in steps, so the result does
// not depend on the machine. The clock is only a cap.
#pragma once

#include <chrono>
#include <cstdint>

#include "reprise/model/units.h"

namespace reprise::internal::packing {

class Effort {
 public:
  // The clock starts with the construction.
  Effort(int64_t steps, Nanos time_limit)
      : left_(steps), end_(Clock::now() + std::chrono::nanoseconds(time_limit.count())) {
    if (time_limit <= Nanos(0)) left_ = 0;
  }

  // Returns false if no effort is left. Reads the clock every million steps.
  bool spend(int64_t steps) {
    left_ -= steps;
    unwatched_ += steps;
    if (unwatched_ > kWatch) {
      unwatched_ = 0;
      if (Clock::now() >= end_) left_ = 0;
    }
    return left_ > 0;
  }

  int64_t left() const { return left_; }

  // Returns an effort of at most this many steps, under the same clock. The steps are not taken off
  // this effort.
  Effort part(int64_t steps) const {
    Effort some = *this;
    some.left_ = steps < left_ ? steps : left_;
    return some;
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr int64_t kWatch = 1'000'000;

  int64_t left_;
  int64_t unwatched_ = 0;
  Clock::time_point end_;
};

}  // namespace reprise::internal::packing
