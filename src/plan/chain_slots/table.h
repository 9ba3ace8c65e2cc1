// A SlotTable solves the persistent recurrence over slots of memory (chain_slots/grid.h). It holds
// the cost of every segment at every point of the segment's grid, as 32-bit numbers.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "plan/chain/branches.h"
#include "plan/chain/cells.h"
#include "plan/chain/model.h"
#include "plan/chain_slots/divider.h"
#include "plan/chain_slots/grid.h"
#include "plan/common/search_control.h"
#include "reprise/model/units.h"

namespace reprise::internal::chain_slots {

// A SlotRow holds the costs of one cell. Below point `low` the cell is infeasible (or dearer than
// any plan of interest). `values` begin at `low`, and the last of them, `least`, holds at every
// later point. Costs never rise with memory.
struct SlotRow {
  int32_t low = 0;
  int32_t size = 0;  // 0: nowhere feasible
  int32_t least = 0;
  std::unique_ptr<int32_t[]> values;  // and kLanes times `least`, for the kernels
};

// Times are multiples of a scale and are rounded as the sizes are: up for an upper bound, down for
// a lower one. The largest time of interest fits 29 bits, so that the sum of three numbers fits 32;
// anything slower counts as infeasible. Re-runs, which break ties in ChainModel's costs, are left
// out because they would take most of the bits.
class SlotScale {
 public:
  static constexpr int32_t kNone = 1 << 29;

  SlotScale(const chain::ChainModel& model, int64_t largest_cost, Rounding rounding)
      : SlotScale(model, largest_cost * model.cost_unit / model.time_weight, rounding, Times{}) {}

  bool exact() const { return exact_; }
  int32_t number(int64_t cost) const {
    const int64_t number = scale_.floor(cost * unit_ + up_);
    return number < kNone ? static_cast<int32_t>(number) : kNone;
  }
  // Returns the least cost that is not below the number.
  int64_t cost(int32_t number) const { return (number * scale_.divisor() + unit_ - 1) / unit_; }

 private:
  struct Times {};
  SlotScale(const chain::ChainModel& model, int64_t largest_time, Rounding rounding,
            Times /*in units*/)
      : exact_(largest_time < kNone - 1),
        scale_(model.time_weight * (largest_time / (kNone - 1) + 1)),
        unit_(model.cost_unit),
        up_(rounding == Rounding::kUp ? scale_.divisor() - model.time_weight : 0) {}

  bool exact_;
  Divider scale_;  // ChainModel's costs times their unit, for one unit here
  int64_t unit_;
  int64_t up_;
};

struct SlotLimits {
  int64_t memory = 0;        // bytes beyond fixed and x_0 that a plan may use
  int64_t slots = 0;         // about as many points a cell
  int64_t largest_cost = 0;  // cost of the best known plan: no dearer plan is wanted
  bool shared = true;        // whether equal cells are shared in `cells`
  int threads = 1;
  bool tiles = true;  // whether neighbouring cells are computed together; the values are the same
};

class SlotMinimum;  // over the branches of one cell; each thread has its own

class SlotTable {
 public:
  // Stops early if the control says so; complete() tells. The values are the same with any number
  // of threads.
  SlotTable(const chain::ChainModel& model, const chain::ChainCells& cells,
            const SlotLimits& limits, Rounding rounding, common::SearchControl& control);

  bool complete() const { return complete_; }
  bool exact() const { return grid_.exact() && scale_.exact(); }
  // Returns the bound on C(first, last, memory, pinned) from the point next to `memory`: the point
  // below for kUp, the point above for kDown. Returns kInfeasible if no value within the largest
  // cost was found.
  int64_t cost(const chain::Cell& cell, int64_t memory) const;
  Bytes memory() const { return Bytes(bytes_.load()); }

 private:
  // A Reach is the memory that the sweep so far needs, and the first point that has it.
  struct Reach {
    int64_t memory = -1;
    int32_t from = 0;
  };

  bool cell_by_cell(int threads, common::SearchControl& control);
  bool tile_by_tile(int threads, common::SearchControl& control);
  void compute(const chain::Cell& cell, SlotMinimum& minimum);
  void compute_tile(std::span<const chain::Cell> cells, std::vector<SlotMinimum>& minima,
                    const common::SearchControl& control);
  void extend(const chain::Cell& cell, size_t j, int64_t phase, Reach& reach) const;
  void checkpoint_at(const chain::Cell& cell, size_t begin, size_t end, Reach& reach,
                     SlotMinimum& minimum) const;
  void store(const chain::Cell& cell, const SlotMinimum& minimum);
  int64_t phase_of(const chain::Cell& cell) const;
  void keep(const chain::Cell& cell, int64_t phase, SlotMinimum& minimum) const;
  void checkpoint(const chain::Cell& cell, int64_t phase, SlotMinimum& minimum) const;
  void sweep_to(const chain::Cell& cell, size_t j, int64_t phase, int64_t cost, int32_t from,
                SlotMinimum& minimum) const;

  const chain::ChainModel& model_;
  const chain::ChainCells& cells_;
  chain::LeastMemory least_memory_;
  SlotLimits limits_;
  Rounding rounding_;
  SlotGrid grid_;
  SlotScale scale_;
  std::vector<SlotRow> rows_;
  bool one_sweep_ = true;       // every stage has one way to be swept
  std::vector<int64_t> swept_;  // if so: [i] = cost of sweeping stages 0..i-1
  std::atomic<int64_t> bytes_ = 0;
  bool complete_ = false;
};

}  // namespace reprise::internal::chain_slots
