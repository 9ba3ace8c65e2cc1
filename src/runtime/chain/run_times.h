// These are times of the runs of a chain, each measured as often as the options demand.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "reprise/model/profile.h"
#include "reprise/runtime/measure.h"
#include "runtime/device/stopwatch.h"

namespace reprise::runtime::internal::chain {

class RunTimes {
 public:
  RunTimes(c10::Device device, const MeasureOptions& options) : options_(options), watch_(device) {}

  // Calls once(), which returns the nanoseconds of one run, as often as the options demand.
  template <class Once>
  void repeat(Once&& once) const {
    int64_t total = 0;
    for (int runs = 0; runs < options_.min_repeats ||
                       (total < options_.min_time.count() && runs < options_.max_repeats);
         ++runs) {
      total += once();
    }
  }

  // Returns the time for the chain, and notes the spread of the wall times.
  Nanos note(const std::string& op, const std::string& variant,
             const std::vector<device::TimedRun>& runs);

  // Repeats once(), which returns the time of one run, and notes the times.
  template <class Once>
  Nanos measure(const std::string& op, const std::string& variant, Once&& once) {
    std::vector<device::TimedRun> runs;
    repeat([&] {
      runs.push_back(once());
      return runs.back().wall.count();
    });
    return note(op, variant, runs);
  }

  // Says that what follows is measured from the last stage to the first.
  void turn_round() { backward_ = spread_.size(); }
  // Returns the spreads in the order of the stages.
  std::vector<TimeSpread> take_spread();
  int64_t processor_percent() const { return watch_.percent(); }

 private:
  const MeasureOptions& options_;
  const device::ProcessorWatch watch_;
  std::vector<TimeSpread> spread_;
  size_t backward_ = 0;  // the position in spread_ where the backward sweep begins
};

}  // namespace reprise::runtime::internal::chain
