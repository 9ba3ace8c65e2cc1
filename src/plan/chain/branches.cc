#include "plan/chain/branches.h"

namespace reprise::internal::chain {

void Sweep::extend() {
  const std::vector<SweepVariant>& ways = model_.sweeps[end_];
  const int64_t input = end_ == first_ ? 0 : model_.x[end_] - freed_;
  ++end_;
  if (ways.size() == 1) {
    for (CurvePoint& step : steps_) {
      step.memory = std::max(step.memory, input + ways[0].memory);
      step.cost += ways[0].cost;
    }
    // Some steps may now begin at the same memory; the last of them is the cheapest.
    const auto dearer = [](const CurvePoint& a, const CurvePoint& b) {
      return a.memory == b.memory;
    };
    steps_.erase(steps_.begin(), std::unique(steps_.rbegin(), steps_.rend(), dearer).base());
    return;
  }
  CostCurve stage;
  for (const SweepVariant& way : ways) stage.push_back({input + way.memory, way.cost});
  Envelope sum;
  sum.reset(kInfeasible, kInfeasible);
  sum.add_sum({steps_, 0}, {stage, 0}, 0, 0);
  steps_ = sum.function();
}

LeastMemory::LeastMemory(const ChainModel& model) : model_(model) {
  std::vector<int64_t> needs;
  for (size_t k = 0; k < model.stages; ++k) {
    int64_t least = kInfeasible;
    for (const KeepOption& option : model.options[k]) {
      least = std::min(least, option.backward + (option.reads_input ? model.x[k] : 0));
    }
    needs.push_back(least - model.weights(0, k));
  }
  needs.push_back(model.loss[0] + model.x[model.stages] - model.weights(0, model.stages));
  for (size_t half = 1; !needs.empty(); half *= 2) {
    needs_.push_back(needs);
    for (size_t k = 0; k + half < needs.size(); ++k) needs[k] = std::max(needs[k], needs[k + half]);
    needs.resize(needs.size() > half ? needs.size() - half : 0);
  }
}

int64_t LeastMemory::largest(size_t first, size_t last) const {
  size_t n = 0;
  while ((size_t{2} << n) <= last - first + 1) ++n;
  return std::max(needs_[n][first], needs_[n][last + 1 - (size_t{1} << n)]);
}

int64_t LeastMemory::of(const Cell& cell) const {
  const auto i = static_cast<size_t>(cell.first), l = static_cast<size_t>(cell.last);
  if (i == model_.stages) return model_.loss[cell.pinned];
  // The input of the first stage is not counted. Once it is given back, its bytes hold other
  // values.
  int64_t least = kInfeasible, given_back = 0;
  for (const KeepOption& option : model_.options[i]) {
    const int64_t u = model_.given_back(i, option, cell.pinned);
    least = std::min(least, option.backward - u);
    given_back = std::max(given_back, u);
  }
  least += model_.weights(i + 1, l);
  if (i < l) least = std::max(least, largest(i + 1, l) + model_.weights(0, l) - given_back);
  return least;
}

}  // namespace reprise::internal::chain
