#include "runtime/device/overheads.h"

#include <fmt/format.h>

#include <algorithm>

namespace reprise::runtime {

std::string to_string(const Overhead& overhead) {
  return fmt::format("{} in {}, because {}: {}", overhead.work, format_duration(overhead.time),
                     overhead.why, overhead.found);
}

namespace internal::device {

std::string found_text(const PlanResult& result) {
  if (!result.plan) return "no plan within " + format_bytes(result.budget);
  const auto share = [](int64_t part, int64_t whole) {
    return static_cast<double>(part) / static_cast<double>(std::max<int64_t>(1, whole));
  };
  return fmt::format("{:.2f} of plain training's peak, {:.2f} of its time",
                     share(result.plan->peak.count(), result.baseline.peak.count()),
                     share(result.plan->time.count(), result.baseline.time.count()));
}

}  // namespace internal::device
}  // namespace reprise::runtime
