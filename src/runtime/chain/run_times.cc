#include "runtime/chain/run_times.h"

#include <algorithm>

namespace reprise::runtime::internal::chain {

Nanos RunTimes::note(const std::string& op, const std::string& variant,
                     const std::vector<device::TimedRun>& runs) {
  std::vector<Nanos> times = device::wall_times(runs);
  std::sort(times.begin(), times.end());
  spread_.push_back({op, variant, static_cast<int64_t>(times.size()), times.front(),
                     times[times.size() / 2], times.back()});
  return device::typical_time(runs, watch_.busy());
}

std::vector<TimeSpread> RunTimes::take_spread() {
  std::reverse(spread_.begin() + static_cast<std::ptrdiff_t>(backward_), spread_.end());
  return std::move(spread_);
}

}  // namespace reprise::runtime::internal::chain
