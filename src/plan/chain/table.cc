#include "plan/chain/table.h"

#include <algorithm>
#include <span>
#include <utility>

#include "plan/chain/branches.h"
#include "plan/chain/effort.h"
#include "plan/chain/surroundings.h"
#include "plan/common/by_level.h"

namespace reprise::internal::chain {

using common::for_each_by_level;
using common::SearchControl;

namespace {

// This weight is above every real one, and far enough from the end of 128 bits to be added to.
constexpr LossBound::Wide kNoWeight = LossBound::Wide{1} << 124;

// Returns the least cost that a plan with this cell pays elsewhere. A segment that does not reach
// the loss lies left of a checkpoint or of a dropped input, and was swept on the way there.
int64_t paid_before(const ChainModel& model, const Cell& cell) {
  const auto i = static_cast<size_t>(cell.first), l = static_cast<size_t>(cell.last);
  if (l == model.stages) return 0;
  if (cell.option < 0) return model.least_sweep(i, l + 1);
  return model.least_sweep(i, l) + model.options[l][cell.option].cost;
}

int64_t floor_of(const ChainModel& model, const ChainCells& cells, const LeastMemory& least,
                 const std::vector<int64_t>& floors, const Cell& cell) {
  const int64_t at_least = least.of(cell);
  int64_t best = kInfeasible;
  const auto visit = [&](const Branch& branch) {
    int64_t need = branch.from;
    if (branch.right >= 0) {
      need = std::max(need, floors[branch.right] + branch.right_shift);
    }
    if (branch.left >= 0) {
      need = std::max(need, floors[branch.left] + branch.left_shift);
    }
    best = std::min(best, need);
  };
  for_each_branch(model, cells, cell, visit, [&](int64_t /*cost*/, int64_t memory) {
    return memory >= best || at_least >= best;
  });
  return best;
}

// Portions lists the work on the cells of each length, in the order of the lengths.
struct Portions {
  std::vector<Portion> list;
  std::vector<size_t> ends;
};

// Lists the cells that some plan may have, as far as that is known. If few cells of a length remain
// (repeated stages have few different cells), each cell is divided.
Portions divide(const ChainCells& cells, const Surroundings* around, int threads) {
  constexpr size_t kManyForThread = 4;
  Portions portions;
  std::vector<size_t> needed;
  size_t begin = 0;
  for (const size_t end : cells.length_ends()) {
    needed.clear();
    for (size_t cell = begin; cell < end; ++cell) {
      const auto slot = static_cast<size_t>(cells.order()[cell].slot);
      if (around == nullptr || around->needed(slot)) needed.push_back(cell);
    }
    const bool few = needed.size() < kManyForThread * static_cast<size_t>(threads);
    const int parts = few ? threads : 1;
    for (const size_t cell : needed) {
      for (int number = 0; number < parts; ++number) portions.list.push_back({cell, number, parts});
    }
    portions.ends.push_back(portions.list.size());
    begin = end;
  }
  return portions;
}

// Returns the lower envelope of the functions, and gives their memory back.
CostCurve least_of(std::span<CostCurve> functions, Envelope& envelope) {
  const CurveView zero = zero_function();
  envelope.reset(kInfeasible, kInfeasible);
  for (CostCurve& function : functions) {
    envelope.add_sum({function, 0}, {zero, 0}, 0, zero.front().memory);
    CostCurve().swap(function);
  }
  return envelope.function();
}

}  // namespace

std::vector<int64_t> smallest_memory(const ChainModel& model, const ChainCells& cells, int threads,
                                     SearchControl& control) {
  std::vector<int64_t> floors(cells.slots(), kInfeasible);
  const LeastMemory least(model);
  const std::vector<Cell>& order = cells.order();
  const bool complete = for_each_by_level(
      cells.length_ends(), useful_threads(cells, threads),
      [&](int, size_t k) {
        floors[order[k].slot] = floor_of(model, cells, least, floors, order[k]);
      },
      [&](size_t) { return !control.out_of_time(); });
  if (!complete) floors.clear();
  return floors;
}

CurveTable::CurveTable(const ChainModel& model, const ChainCells& cells, const CurveLimits& limits,
                       SearchControl& control)
    : model_(model),
      cells_(cells),
      control_(control),
      least_memory_(model),
      limits_(limits),
      curves_(cells.slots()),
      least_weights_(2 * (model.stages + 1), 0) {
  const std::vector<Cell>& order = cells.order();
  bytes_ = static_cast<int64_t>(cells.slots() * (sizeof(CostCurve) + sizeof(int64_t)) +
                                order.size() * sizeof(Cell));
  const int threads = useful_threads(cells, limits.threads);
  const Portions portions = divide(cells, limits.around, threads);
  std::vector<CostCurve> unfinished(threads > 1 ? portions.list.size() : 0);
  std::vector<std::atomic<int>> missing(unfinished.empty() ? 0 : order.size());
  for (const Portion& portion : portions.list) {
    if (portion.of > 1) missing[portion.cell] = portion.of;
  }
  std::vector<Envelope> envelopes(static_cast<size_t>(threads));
  const auto work = [&](int thread, size_t k) {
    const Portion& portion = portions.list[k];
    const Cell& cell = order[portion.cell];
    Envelope& envelope = envelopes[thread];
    CostCurve curve = compute(cell, portion, envelope);
    if (portion.of > 1) {
      unfinished[k] = std::move(curve);
      if (--missing[portion.cell] > 0) return;
      curve = least_of(
          {&unfinished[k - static_cast<size_t>(portion.number)], static_cast<size_t>(portion.of)},
          envelope);
    }
    prune(cell, curve);
    weigh(cell, curve);
    used_ += curve.empty() ? 0 : 1;
    bytes_ += static_cast<int64_t>(curve.capacity() * sizeof(CurvePoint));
    curves_[cell.slot] = std::move(curve);
  };
  complete_ = for_each_by_level(portions.ends, threads, work, [&](size_t k) {
    control.report(static_cast<double>(k) / static_cast<double>(portions.list.size()));
    return !control.out_of_time() && bytes_ <= kTableLimit;
  });
  complete_ = complete_ && !control.out_of_time();
}

// Sets the memory and the cost beyond which no plan within the limits uses the cell. Returns false
// if no plan uses the cell.
bool CurveTable::set_caps(const Cell& cell, int64_t least_memory, Envelope& envelope) const {
  const auto slot = static_cast<size_t>(cell.slot);
  int64_t memory = limits_.memory, cost = limits_.cost;
  if (limits_.around != nullptr) {
    memory = limits_.around->most_memory(slot);
    cost -= std::max(limits_.around->least_cost(slot), least_around(cell, least_memory));
  } else {
    // x_i is live and outside m.
    if (cell.first > 0 && memory != kInfeasible) memory -= model_.x[cell.first];
    if (cost != kInfeasible) cost -= least_around(cell, least_memory);
  }
  envelope.reset(memory, cost);
  return cost >= 0 && memory >= least_memory;
}

// Returns a lower bound on the cost that a plan pays elsewhere if it leaves the cell this memory.
int64_t CurveTable::least_around(const Cell& cell, int64_t memory) const {
  const int64_t paid = paid_before(model_, cell);
  if (limits_.bound == nullptr) return paid;
  const bool with_loss = static_cast<size_t>(cell.last) == model_.stages;
  return std::max(paid,
                  with_loss ? limits_.bound->around(cell, memory) : limits_.bound->around(cell));
}

CostCurve CurveTable::compute(const Cell& cell, const Portion& portion, Envelope& envelope) const {
  const int64_t least_memory = least_memory_.of(cell);
  if (!set_caps(cell, least_memory, envelope)) return {};
  const CurveView zero = zero_function();
  const auto part = [&](int64_t of, int64_t shift) {
    return of < 0 ? Shifted{zero, 0} : Shifted{curves_[of], shift};
  };
  int branches = 0;
  const bool with_loss = static_cast<size_t>(cell.last) == model_.stages;
  const bool weighed = with_loss && limits_.bound != nullptr;
  const LossBound::Wide most_weight =
      weighed ? limits_.bound->most_weight(static_cast<size_t>(cell.first), limits_.cost) : 0;
  const auto visit = [&](const Branch& branch) {
    if (branches++ % portion.of != portion.number) return;
    if (weighed && branch.right >= 0 && least_weight_of(branch) > most_weight) return;
    envelope.add_sum(part(branch.right, branch.right_shift), part(branch.left, branch.left_shift),
                     rounded_down(branch.cost, limits_.grid), branch.from);
  };
  // Stops at branches that are beyond the caps, or that cost more than an envelope which already
  // reaches down to the least memory.
  Patience patience(control_);
  const auto done = [&](int64_t cost, int64_t memory) {
    if (patience.is_over()) return true;
    cost = rounded_down(cost, limits_.grid);
    return cost > envelope.cost_cap() || memory > envelope.memory_cap() ||
           (!envelope.empty() && cost >= envelope.dearest().cost &&
            std::max(memory, least_memory) >= envelope.dearest().memory);
  };
  for_each_branch(model_, cells_, cell, visit, done);
  return envelope.function();
}

// Returns the least weight of a step of the branch's sum, for a cell that ends with the loss.
LossBound::Wide CurveTable::least_weight_of(const Branch& branch) const {
  int64_t cost = rounded_down(branch.cost, limits_.grid);
  if (branch.left >= 0) {
    const CostCurve& left = curves_[branch.left];
    if (left.empty()) return kNoWeight;
    cost += left.back().cost;
  }
  const size_t first = branch.kind == BranchKind::kCheckpoint ? branch.at : branch.at + 1;
  return least_weights_[weight_index(first, branch.right)] +
         limits_.bound->weigh(cost, branch.right_shift);
}

void CurveTable::weigh(const Cell& cell, const CostCurve& curve) {
  if (limits_.bound == nullptr || static_cast<size_t>(cell.last) != model_.stages) return;
  LossBound::Wide least = kNoWeight;
  for (const CurvePoint& step : curve) {
    least = std::min(least, limits_.bound->weigh(step.cost, step.memory));
  }
  least_weights_[weight_index(static_cast<size_t>(cell.first), cell.slot)] = least;
}

// Removes the steps that no plan within the limits has.
void CurveTable::prune(const Cell& cell, CostCurve& curve) const {
  const bool with_loss = static_cast<size_t>(cell.last) == model_.stages;
  const auto slot = static_cast<size_t>(cell.slot);
  if (limits_.around != nullptr) {
    std::erase_if(curve, [&](const CurvePoint& step) {
      const int64_t rest = limits_.around->cost_leaving(slot, step.memory);
      return rest == kInfeasible || step.cost + rest > limits_.cost;
    });
  }
  if (limits_.bound != nullptr && with_loss) {
    std::erase_if(curve, [&](const CurvePoint& step) {
      return step.cost + limits_.bound->around(cell, step.memory) > limits_.cost;
    });
  }
  curve.shrink_to_fit();
}

}  // namespace reprise::internal::chain
