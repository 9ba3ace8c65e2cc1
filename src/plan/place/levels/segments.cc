#include "plan/place/levels/segments.h"

#include <algorithm>
#include <cmath>

#include "plan/chain/trace.h"

namespace reprise::internal::levels {

size_t longest_segment(size_t stages) {
  constexpr double kWork = 2e7;  // stages * window^2, at most
  const auto most = static_cast<size_t>(std::sqrt(kWork / static_cast<double>(stages)));
  return std::min(stages, std::max<size_t>(most, 2));
}

Segments::Segments(const Chain& chain, const chain::ChainModel& model, size_t window,
                   int64_t memory, common::SearchControl& control)
    : chain_(chain),
      model_(model),
      window_(window),
      cells_(model, window),
      table_(model, cells_, {.memory = memory}, control) {
  for (const Stage& stage : chain.stages) {
    int64_t least = chain::kInfeasible;
    for (const StageOption& option : stage.options) {
      least = std::min(least, (option.forward.time + option.backward.time).count());
    }
    sweeps_.push_back(sweeps_.back() + stage.forward.time.count());
    least_.push_back(least_.back() + least);
  }
}

const std::vector<Run>& Segments::runs(size_t first, size_t last, size_t step) {
  const auto [found, is_new] = runs_.try_emplace({first * window_ + (last - first), step});
  if (is_new) {
    const auto cost = [&](size_t slot, int64_t m) { return chain::cost_at(table_.curve(slot), m); };
    found->second = chain::trace_segment(model_, cells_, cost, first, last, true,
                                         curve(first, last)[step].memory)
                        .runs;
  }
  return found->second;
}

}  // namespace reprise::internal::levels
