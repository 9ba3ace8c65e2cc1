#include "plan/chain_slots/table.h"

#include <algorithm>
#include <numeric>

#include "plan/chain_slots/kernel.h"
#include "plan/common/by_level.h"

namespace reprise::internal::chain_slots {

using chain::Cell;
using chain::ChainCells;
using chain::ChainModel;
using chain::CurvePoint;
using chain::KeepOption;
using chain::kInfeasible;
using chain::Sweep;
using chain::SweepVariant;
using common::for_each_by_level;
using common::SearchControl;

class SlotMinimum {
 public:
  explicit SlotMinimum(int32_t last)
      : last_(last), values_(static_cast<size_t>(last) + 1 + kLanes, SlotScale::kNone) {}

  // Clears all points. From now on, the function is infeasible below `begin`.
  void reset(int32_t begin) {
    begin_ = std::min(begin, last_ + 1);
    std::fill(values_.begin() + begin_, values_.end(), SlotScale::kNone);
  }

  // Takes the minimum with k -> a(k - a_shift) + b(k - b_shift) + cost for k >= from.
  void add_sum(const SlotRow& a, int32_t a_shift, const SlotRow& b, int32_t b_shift, int32_t cost,
               int32_t from) {
    if (a.size == 0 || b.size == 0) return;
    int32_t k = std::max({begin_, from, a.low + a_shift, b.low + b_shift});
    const int32_t least = a.least + b.least + cost;
    if (k > last_ || values_[at(k)] <= least) return;
    const int32_t end = end_above(least, k);
    const int32_t a_flat = std::min(end, a.low + a_shift + a.size - 1);
    const int32_t b_flat = std::min(end, b.low + b_shift + b.size - 1);
    const auto a_at = [&](int32_t point) { return &a.values[at(point - a_shift - a.low)]; };
    const auto b_at = [&](int32_t point) { return &b.values[at(point - b_shift - b.low)]; };
    if (const int32_t stop = std::min(a_flat, b_flat); k < stop) {
      min_sum(&values_[at(k)], a_at(k), b_at(k), cost, at(stop - k));
      k = stop;
    }
    if (k < a_flat) {
      min_shifted(&values_[at(k)], a_at(k), b.least + cost, at(a_flat - k));
      k = a_flat;
    } else if (k < b_flat) {
      min_shifted(&values_[at(k)], b_at(k), a.least + cost, at(b_flat - k));
      k = b_flat;
    }
    for (; k < end; ++k) values_[at(k)] = std::min(values_[at(k)], least);
  }

  // Returns whether sums that cost at least this much change nothing.
  bool settled(int32_t cost) const { return begin_ > last_ || values_[at(begin_)] <= cost; }

  SlotRow row() const {
    SlotRow row;
    int32_t low = begin_;
    while (low <= last_ && values_[at(low)] == SlotScale::kNone) ++low;
    if (low > last_) return row;
    int32_t high = last_;
    while (high > low && values_[at(high - 1)] == values_[at(last_)]) --high;
    row.low = low;
    row.size = high - low + 1;
    row.least = values_[at(high)];
    row.values = std::make_unique_for_overwrite<int32_t[]>(at(row.size) + kLanes);
    std::copy_n(values_.begin() + low, row.size, row.values.get());
    std::fill_n(row.values.get() + row.size, kLanes, row.least);
    return row;
  }

 private:
  static size_t at(int32_t k) { return static_cast<size_t>(k); }

  // Returns a point beyond all points whose value is above `least`, and at most a stride beyond the
  // last of them. Values never rise, so sums of at least `least` change nothing from there on. A
  // search for the exact point would take longer than the additions that it saves.
  int32_t end_above(int32_t least, int32_t k) const {
    constexpr int32_t kStride = 64;
    while (k <= last_ && values_[at(k)] > least) k += kStride;
    return std::min(k, last_ + 1);
  }

  int32_t last_;
  int32_t begin_ = 0;
  std::vector<int32_t> values_;
};

namespace {

// The row costs nothing at every point, however it is shifted.
const SlotRow& zero_row() {
  static const SlotRow kZero{.low = -(1 << 30), .size = 1, .values = {}};
  return kZero;
}

// A tile has the cells that begin at neighbouring stages and end at neighbouring stages. They are
// computed together.
constexpr size_t kTile = 8;

struct Tiles {
  std::vector<Cell> cells;         // tile by tile, within a tile by length
  std::vector<size_t> begins;      // begin of each tile in `cells`, and the end
  std::vector<size_t> level_ends;  // end of the tiles that lie equally far apart
};

Tiles divide(const ChainCells& cells, size_t stages) {
  const size_t side = stages / kTile + 1;
  const auto tile_of = [&](const Cell& cell) {
    const size_t row = static_cast<size_t>(cell.first) / kTile;
    const size_t apart = static_cast<size_t>(cell.last) / kTile - row;
    return apart * side - apart * (apart - 1) / 2 + row;  // tiles before: side + (side - 1) + ...
  };
  Tiles tiles;
  tiles.begins.assign(side * (side + 1) / 2 + 1, 0);
  for (const Cell& cell : cells.order()) ++tiles.begins[tile_of(cell) + 1];
  std::partial_sum(tiles.begins.begin(), tiles.begins.end(), tiles.begins.begin());
  std::vector<size_t> next = tiles.begins;
  tiles.cells.resize(cells.order().size());
  for (const Cell& cell : cells.order()) tiles.cells[next[tile_of(cell)]++] = cell;
  for (size_t apart = 0; apart < side; ++apart) {
    tiles.level_ends.push_back((apart == 0 ? 0 : tiles.level_ends.back()) + side - apart);
  }
  return tiles;
}

}  // namespace

SlotTable::SlotTable(const ChainModel& model, const ChainCells& cells, const SlotLimits& limits,
                     Rounding rounding, SearchControl& control)
    : model_(model),
      cells_(cells),
      least_memory_(model),
      limits_(limits),
      rounding_(rounding),
      grid_(model, limits.memory, limits.slots, rounding, limits.shared),
      scale_(model, limits.largest_cost, rounding),
      rows_(cells.slots()),
      swept_{0} {
  bytes_ = static_cast<int64_t>(cells.slots() * (sizeof(SlotRow) + sizeof(int64_t)) +
                                cells.order().size() * sizeof(Cell));
  for (const std::vector<SweepVariant>& ways : model.sweeps) {
    one_sweep_ = one_sweep_ && ways.size() == 1;
    swept_.push_back(swept_.back() + ways.front().cost);
  }
  // With less than some hundred microseconds of work, another thread is not worth its start.
  constexpr size_t kWorthAThread = 500'000;
  const size_t updates_a_length = cells.order().size() * static_cast<size_t>(grid_.last());
  const auto threads = static_cast<int>(
      std::clamp<size_t>(updates_a_length / kWorthAThread, 1, static_cast<size_t>(limits.threads)));
  complete_ = !limits.tiles || cells.shared() || !one_sweep_ ? cell_by_cell(threads, control)
                                                             : tile_by_tile(threads, control);
}

bool SlotTable::cell_by_cell(int threads, SearchControl& control) {
  const std::vector<Cell>& order = cells_.order();
  std::vector<SlotMinimum> minima(static_cast<size_t>(threads), SlotMinimum(grid_.last()));
  return for_each_by_level(
      cells_.length_ends(), threads,
      [&](int thread, size_t k) { compute(order[k], minima[thread]); },
      [&](size_t k) {
        control.report(static_cast<double>(k) / static_cast<double>(order.size()));
        return !control.out_of_time();
      });
}

bool SlotTable::tile_by_tile(int threads, SearchControl& control) {
  const Tiles tiles = divide(cells_, model_.stages);
  std::vector<std::vector<SlotMinimum>> minima(static_cast<size_t>(threads));
  const bool complete = for_each_by_level(
      tiles.level_ends, threads,
      [&](int thread, size_t k) {
        const std::span<const Cell> cells(&tiles.cells[tiles.begins[k]],
                                          tiles.begins[k + 1] - tiles.begins[k]);
        compute_tile(cells, minima[thread], control);
      },
      [&](size_t k) {
        control.report(static_cast<double>(k) / static_cast<double>(tiles.begins.size()));
        return !control.out_of_time();
      });
  return complete && !control.out_of_time();
}

int64_t SlotTable::cost(const Cell& cell, int64_t memory) const {
  const SlotRow& row = rows_[cell.slot];
  const int64_t phase =
      grid_.phase(static_cast<size_t>(cell.first), static_cast<size_t>(cell.last), cell.pinned);
  const int32_t k = rounding_ == Rounding::kUp
                        ? grid_.point_below(memory, phase)
                        : std::min(grid_.first_point(memory, phase), grid_.last());
  if (row.size == 0 || k < row.low) return kInfeasible;
  return scale_.cost(row.values[std::min(k - row.low, row.size - 1)]);
}

void SlotTable::compute(const Cell& cell, SlotMinimum& minimum) {
  const int64_t phase = phase_of(cell);
  minimum.reset(grid_.first_point(least_memory_.of(cell), phase));
  if (static_cast<size_t>(cell.first) == model_.stages) {
    minimum.add_sum(zero_row(), 0, zero_row(), 0, 0, 0);  // the loss: its test is the least memory
  } else {
    keep(cell, phase, minimum);
    checkpoint(cell, phase, minimum);
  }
  store(cell, minimum);
}

// The checkpoints between the stages where the cells of a tile begin and the stages where they end
// read cells of other tiles only. So their order is free. The loop takes a few checkpoints at a
// time for all cells, so that the rows stay in the cache.
void SlotTable::compute_tile(std::span<const Cell> cells, std::vector<SlotMinimum>& minima,
                             const SearchControl& control) {
  constexpr size_t kTogether = 16;
  const size_t begin = (static_cast<size_t>(cells.front().first) / kTile + 1) * kTile;
  const size_t end = static_cast<size_t>(cells.front().last) / kTile * kTile + 1;
  minima.resize(std::max(minima.size(), cells.size()), SlotMinimum(grid_.last()));
  std::vector<Reach> reaches;
  for (size_t k = 0; k < cells.size(); ++k) {
    const int64_t phase = phase_of(cells[k]);
    minima[k].reset(grid_.first_point(least_memory_.of(cells[k]), phase));
    Reach& reach = reaches.emplace_back();
    for (size_t j = static_cast<size_t>(cells[k].first) + 1; j < std::min(begin, end); ++j) {
      extend(cells[k], j, phase, reach);
    }
  }
  for (size_t from = begin; from < end; from += kTogether) {
    if (control.out_of_time()) return;
    for (size_t k = 0; k < cells.size(); ++k) {
      checkpoint_at(cells[k], from, std::min(from + kTogether, end), reaches[k], minima[k]);
    }
  }
  for (size_t k = 0; k < cells.size(); ++k) {
    const Cell& cell = cells[k];
    const auto first = static_cast<size_t>(cell.first), last = static_cast<size_t>(cell.last);
    if (first == model_.stages) {
      minima[k].add_sum(zero_row(), 0, zero_row(), 0, 0, 0);
    } else {
      keep(cell, phase_of(cell), minima[k]);
      Reach near;
      checkpoint_at(cell, first + 1, begin < end ? begin : last + 1, near, minima[k]);
      if (begin < end) checkpoint_at(cell, end, last + 1, reaches[k], minima[k]);
    }
    store(cell, minima[k]);
  }
}

void SlotTable::extend(const Cell& cell, size_t j, int64_t phase, Reach& reach) const {
  const int64_t input = j - 1 == static_cast<size_t>(cell.first) ? 0 : model_.x[j - 1];
  const int64_t needed = input + model_.sweeps[j - 1].front().memory;
  if (needed <= reach.memory) return;
  reach.memory = needed;
  reach.from =
      grid_.first_point(model_.g[static_cast<size_t>(cell.last) + 1] + reach.memory, phase);
}

// Adds the checkpoints begin..end-1, if every stage has one way to be swept.
void SlotTable::checkpoint_at(const Cell& cell, size_t begin, size_t end, Reach& reach,
                              SlotMinimum& minimum) const {
  const auto first = static_cast<size_t>(cell.first);
  const int64_t phase = phase_of(cell);
  for (size_t j = begin; j < end; ++j) {
    extend(cell, j, phase, reach);
    sweep_to(cell, j, phase, swept_[j] - swept_[first], reach.from, minimum);
  }
}

void SlotTable::store(const Cell& cell, const SlotMinimum& minimum) {
  SlotRow& row = rows_[cell.slot];
  row = minimum.row();
  bytes_ += static_cast<int64_t>((static_cast<size_t>(row.size) + kLanes) * sizeof(int32_t));
}

int64_t SlotTable::phase_of(const Cell& cell) const {
  return grid_.phase(static_cast<size_t>(cell.first), static_cast<size_t>(cell.last), cell.pinned);
}

void SlotTable::keep(const Cell& cell, int64_t phase, SlotMinimum& minimum) const {
  const size_t i = cell.first, l = cell.last;
  for (const KeepOption& option : model_.options[i]) {
    const int64_t given_back = model_.given_back(i, option, cell.pinned);
    const int64_t test = std::max(model_.g[l + 1] + option.forward,
                                  model_.weights(i + 1, l) + option.backward - given_back);
    const int32_t cost = scale_.number(option.cost);
    const int32_t from = grid_.first_point(test, phase);
    if (i == l) {
      minimum.add_sum(zero_row(), 0, zero_row(), 0, cost, from);
      continue;
    }
    const int32_t shift = grid_.shift(option.saved + model_.x[i + 1] - given_back, phase,
                                      grid_.phase(i + 1, l, option.reads_output));
    minimum.add_sum(rows_[cells_.slot(i + 1, l, option.reads_output)], shift, zero_row(), 0, cost,
                    from);
  }
}

void SlotTable::checkpoint(const Cell& cell, int64_t phase, SlotMinimum& minimum) const {
  const size_t i = cell.first, l = cell.last;
  if (one_sweep_) {
    Reach reach;
    checkpoint_at(cell, i + 1, l + 1, reach, minimum);
    return;
  }
  Sweep sweep(model_, i);
  for (size_t j = i + 1; j <= l; ++j) {
    sweep.extend();
    for (const CurvePoint& step : sweep.steps()) {
      sweep_to(cell, j, phase, step.cost, grid_.first_point(model_.g[l + 1] + step.memory, phase),
               minimum);
    }
  }
}

void SlotTable::sweep_to(const Cell& cell, size_t j, int64_t phase, int64_t cost, int32_t from,
                         SlotMinimum& minimum) const {
  const size_t i = cell.first, l = cell.last;
  const SlotRow& right = rows_[cells_.slot(j, l, false)];
  const SlotRow& left = rows_[cells_.slot(i, j - 1, cell.pinned)];
  const int32_t number = scale_.number(cost);
  if (minimum.settled(number)) return;
  minimum.add_sum(right, grid_.shift(model_.x[j], phase, grid_.phase(j, l, false)), left,
                  grid_.shift(model_.weights(j, l), phase, grid_.phase(i, j - 1, cell.pinned)),
                  number, from);
}

}  // namespace reprise::internal::chain_slots
