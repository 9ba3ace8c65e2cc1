#include "plan/chain_table.h"

#include <algorithm>

namespace reprise::internal {
namespace {

// Tables beyond this are given up like a search beyond its time.
constexpr int64_t kTableLimit = int64_t{4} << 30;

// The tests of keeping stage i: m must be at least this.
int64_t keep_test(const ChainModel& model, const KeepOption& option, size_t i, size_t l,
                  bool pinned) {
  return std::max(model.g[l + 1] + option.forward,
                  model.weights(i + 1, l) + option.backward - model.given_back(i, option, pinned));
}

// What keeping stage i takes from the memory of the segment (i+1, l).
int64_t keep_shift(const ChainModel& model, const KeepOption& option, size_t i, bool pinned) {
  return option.saved + model.x[i + 1] - model.given_back(i, option, pinned);
}

int64_t floor_of(const ChainModel& model, const ChainCells& cells,
                 const std::vector<int64_t>& floors, const Cell& cell) {
  const size_t i = cell.first, l = cell.last;
  if (i == model.stages) return model.loss[cell.pinned];
  int64_t best = kInfeasible;
  for (const KeepOption& option : model.options[i]) {
    int64_t need = keep_test(model, option, i, l, cell.pinned);
    if (i < l) {
      need = std::max(need, floors[cells.slot(i + 1, l, option.reads_output)] +
                                keep_shift(model, option, i, cell.pinned));
    }
    best = std::min(best, need);
  }
  Sweep sweep(model, i);
  for (size_t j = i + 1; j <= l; ++j) {
    sweep.extend();
    const int64_t need = std::max(
        {model.g[l + 1] + sweep.smallest_memory(), floors[cells.slot(j, l, false)] + model.x[j],
         floors[cells.slot(i, j - 1, cell.pinned)] + model.weights(j, l)});
    best = std::min(best, need);
  }
  return best;
}

}  // namespace

void Sweep::extend() {
  const std::vector<SweepVariant>& ways = model_.sweeps[end_];
  const int64_t input = end_ == first_ ? 0 : model_.x[end_];
  ++end_;
  if (ways.size() == 1) {
    for (Step& step : steps_) {
      step.memory = std::max(step.memory, input + ways[0].memory);
      step.cost += ways[0].cost;
    }
    // Steps that now begin together: the last of them is the cheapest.
    const auto dearer = [](const Step& a, const Step& b) { return a.memory == b.memory; };
    steps_.erase(steps_.begin(), std::unique(steps_.rbegin(), steps_.rend(), dearer).base());
    return;
  }
  StepFunction stage;
  for (const SweepVariant& way : ways) stage.push_back({input + way.memory, way.cost});
  Envelope sum;
  sum.reset(kInfeasible, kInfeasible);
  sum.add_sum({steps_, 0}, {stage, 0}, 0, 0);
  steps_ = sum.function();
}

std::vector<int64_t> smallest_memory(const ChainModel& model, const ChainCells& cells) {
  std::vector<int64_t> floors(cells.slots(), kInfeasible);
  for (const Cell& cell : cells.order()) {
    floors[static_cast<size_t>(cell.slot)] = floor_of(model, cells, floors, cell);
  }
  return floors;
}

CurveTable::CurveTable(const ChainModel& model, const ChainCells& cells, const CurveLimits& limits,
                       SearchControl& control)
    : model_(model), cells_(cells), limits_(limits), curves_(cells.slots()) {
  bytes_ = static_cast<int64_t>(cells.slots() * (sizeof(StepFunction) + sizeof(int64_t)) +
                                cells.order().size() * sizeof(Cell));
  double done = 0, all = 0;
  for (const Cell& cell : cells.order()) all += cell.last - cell.first + 1;
  for (const Cell& cell : cells.order()) {
    if (control.out_of_time() || bytes_ > kTableLimit) return;
    control.report(done / all);
    compute(cell);
    done += cell.last - cell.first + 1;
  }
  complete_ = true;
}

void CurveTable::compute(const Cell& cell) {
  // x_i is live and outside m, so m can never be more than this.
  int64_t cap = limits_.memory;
  if (cell.first > 0 && cap != kInfeasible) cap -= model_.x[static_cast<size_t>(cell.first)];
  envelope_.reset(cap, limits_.cost);
  if (static_cast<size_t>(cell.first) == model_.stages) {
    const Steps zero = zero_function();
    envelope_.add_sum({zero, 0}, {zero, 0}, 0, model_.loss[cell.pinned]);
  } else {
    keep(cell);
    checkpoint(cell);
  }
  StepFunction& curve = curves_[static_cast<size_t>(cell.slot)];
  curve = envelope_.function(limits_.trim);
  bytes_ += static_cast<int64_t>(curve.capacity() * sizeof(Step));
}

void CurveTable::keep(const Cell& cell) {
  const size_t i = cell.first, l = cell.last;
  const Steps zero = zero_function();
  for (const KeepOption& option : model_.options[i]) {
    const Steps rest = i == l ? zero : curve(cells_.slot(i + 1, l, option.reads_output));
    envelope_.add_sum({rest, keep_shift(model_, option, i, cell.pinned)}, {zero, 0}, option.cost,
                      keep_test(model_, option, i, l, cell.pinned));
  }
}

void CurveTable::checkpoint(const Cell& cell) {
  const size_t i = cell.first, l = cell.last;
  Sweep sweep(model_, i);
  for (size_t j = i + 1; j <= l; ++j) {
    sweep.extend();
    const Shifted right{curve(cells_.slot(j, l, false)), model_.x[j]};
    const Shifted left{curve(cells_.slot(i, j - 1, cell.pinned)), model_.weights(j, l)};
    for (const Step& step : sweep.steps()) {
      envelope_.add_sum(right, left, step.cost, model_.g[l + 1] + step.memory);
    }
  }
}

}  // namespace reprise::internal
