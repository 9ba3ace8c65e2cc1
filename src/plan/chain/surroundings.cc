#include "plan/chain/surroundings.h"

#include <algorithm>
#include <utility>

#include "plan/chain/effort.h"
#include "plan/common/by_level.h"

namespace reprise::internal::chain {

using common::for_each_by_level;
using common::SearchControl;

namespace {

// A Descent reads a curve of the table at ever smaller memory. Slot -1 stands for a part that does
// not exist.
class Descent {
 public:
  Descent(const CurveTable& table, int64_t slot)
      : steps_(slot < 0 ? zero_function() : table.curve(static_cast<size_t>(slot))),
        count_(steps_.size()) {}

  int64_t least() const { return steps_.empty() ? kInfeasible / 4 : steps_.back().cost; }

  int64_t cost_at(int64_t memory) {
    size_t stride = 1;
    while (count_ >= stride && steps_[count_ - stride].memory > memory) {
      count_ -= stride;
      stride *= 2;
    }
    for (; stride > 0; stride /= 2) {
      if (count_ >= stride && steps_[count_ - stride].memory > memory) count_ -= stride;
    }
    return count_ == 0 ? kInfeasible : steps_[count_ - 1].cost;
  }

 private:
  CurveView steps_;
  size_t count_;  // steps that may still be read
};

// Levels lists the cells that have a curve, in the order of the work on them.
struct Levels {
  std::vector<size_t> cells;  // in ChainCells::order()
  std::vector<size_t> ends;
};

// Longer segments come first. At the turn of a segment, all plans around it are known.
Levels longest_first(const ChainCells& cells, const CurveTable& table) {
  Levels levels;
  const std::vector<size_t>& ends = cells.length_ends();
  for (size_t length = ends.size(); length-- > 0;) {
    for (size_t cell = ends[length]; cell-- > (length == 0 ? 0 : ends[length - 1]);) {
      const auto slot = static_cast<size_t>(cells.order()[cell].slot);
      if (!table.curve(slot).empty()) levels.cells.push_back(cell);
    }
    levels.ends.push_back(levels.cells.size());
  }
  return levels;
}

}  // namespace

struct Surroundings::Scratch {
  Envelope envelope;
  CostCurve to_right, to_left;
  // For each offer to the current cell: the largest weight that fits into it. most_room is the
  // largest of these.
  std::vector<LossBound::Wide> room;
  LossBound::Wide most_room = 0;
};

Surroundings::Surroundings(const ChainModel& model, const ChainCells& cells,
                           const CurveTable& table, int64_t cost, SearchControl& control)
    : model_(model),
      cells_(cells),
      control_(control),
      table_(&table),
      limit_(cost),
      offers_(cells.slots()) {
  offers_[cells.slot(0, model.stages, true)].push_back({-table.limits().memory, 0});
  bytes_ = static_cast<int64_t>(cells.slots() * sizeof(CostCurve));
  const std::vector<Cell>& order = cells.order();
  const Levels levels = longest_first(cells, table);
  const int threads = useful_threads(cells, table.limits().threads);
  std::vector<Scratch> scratch(static_cast<size_t>(threads));
  complete_ = for_each_by_level(
      levels.ends, threads,
      [&](int thread, size_t k) {
        const Cell& cell = order[levels.cells[k]];
        CostCurve& offers = offers_[cell.slot];
        if (offers.empty()) return;
        ++needed_cells_;
        std::reverse(offers.begin(), offers.end());
        offers.shrink_to_fit();
        bytes_ += static_cast<int64_t>(offers.capacity() * sizeof(CurvePoint));
        offer_to_parts(cell, scratch[thread]);
      },
      [&](size_t) { return !control.out_of_time() && bytes_ <= kTableLimit; });
  complete_ = complete_ && !control.out_of_time();
  table_ = nullptr;
}

bool Surroundings::too_large() const { return bytes_ > kTableLimit; }

int64_t Surroundings::cost_leaving(size_t slot, int64_t memory) const {
  return cost_at(offers_[slot], -memory);
}

// A plan that leaves m bytes to the cell gives each part of a branch the bytes that the branch
// itself and the other part do not take. The cost of the other part and of the branch then belongs
// to the rest of the plan.
void Surroundings::offer_to_parts(const Cell& cell, Scratch& scratch) {
  const CurveView offers = offers_[cell.slot];
  const bool weighed =
      static_cast<size_t>(cell.last) == model_.stages && table_->limits().bound != nullptr;
  if (weighed) weigh(offers, scratch);
  const auto visit = [&](const Branch& branch) {
    if (branch.right < 0 && branch.left < 0) return;
    scratch.to_right.clear();
    scratch.to_left.clear();
    collect(branch, offers, weighed, scratch);
    add_offers(branch.right, scratch.to_right, scratch);
    add_offers(branch.left, scratch.to_left, scratch);
  };
  const int64_t least = offers.back().cost, most = -offers.front().memory;
  Patience patience(control_);
  for_each_branch(model_, cells_, cell, visit, [&](int64_t cost, int64_t memory) {
    return patience.is_over() || memory > most ||
           least + rounded_down(cost, table_->limits().grid) > limit_;
  });
}

// An offer leaves m bytes, and the rest of the plan costs r. The offer has room for everything that
// weighs no more than the weight of the cost limit - r with m bytes.
void Surroundings::weigh(CurveView offers, Scratch& scratch) const {
  const LossBound& bound = *table_->limits().bound;
  scratch.room.clear();
  for (const CurvePoint& offer : offers) {
    scratch.room.push_back(bound.weigh(limit_ - offer.cost, -offer.memory));
  }
  scratch.most_room = *std::max_element(scratch.room.begin(), scratch.room.end());
}

// Turns the offers to a cell into offers to the parts of a branch. From offer to offer there is
// less memory and more cost within the cell, and less cost around it. A stretch of offers is passed
// over if its cheapest surroundings and its cheapest inside are too dear together.
void Surroundings::collect(const Branch& branch, CurveView offers, bool weighed,
                           Scratch& scratch) const {
  const LossBound::Wide weight = weighed ? table_->least_weight_of(branch) : 0;
  if (weighed && weight > scratch.most_room) return;
  const int64_t cost = rounded_down(branch.cost, table_->limits().grid);
  Descent right(*table_, branch.right), left(*table_, branch.left);
  if (offers.back().cost + cost + right.least() + left.least() > limit_) return;
  size_t stride = 1;
  for (size_t k = 0; k < offers.size();) {
    const int64_t memory = -offers[k].memory;
    if (memory < branch.from) return;
    if (weighed && weight > scratch.room[k]) {
      ++k;
      continue;
    }
    const int64_t right_cost = right.cost_at(memory - branch.right_shift);
    const int64_t left_cost = left.cost_at(memory - branch.left_shift);
    if (right_cost == kInfeasible || left_cost == kInfeasible) return;
    const size_t end = std::min(k + stride, offers.size());
    if (offers[end - 1].cost + cost + right_cost + left_cost > limit_) {
      k = end;
      stride *= 2;
      continue;
    }
    if (end - k > 1) {
      stride = (end - k) / 2;
      continue;
    }
    const auto add = [&](CostCurve& points, int64_t shift, int64_t rest) {
      if (points.empty() || rest < points.back().cost) points.push_back({shift - memory, rest});
    };
    add(scratch.to_right, branch.right_shift, offers[k].cost + cost + left_cost);
    add(scratch.to_left, branch.left_shift, offers[k].cost + cost + right_cost);
    ++k;
  }
}

void Surroundings::add_offers(int64_t slot, const CostCurve& points, Scratch& scratch) {
  if (slot < 0 || points.empty()) return;
  const std::lock_guard lock(locks_[static_cast<size_t>(slot) % locks_.size()]);
  CostCurve& offers = offers_[slot];
  const CurveView zero = zero_function();
  Envelope& envelope = scratch.envelope;
  envelope.reset(kInfeasible, kInfeasible);
  envelope.exchange(offers);
  envelope.add_sum({points, 0}, {zero, 0}, 0, zero.front().memory);
  envelope.exchange(offers);
}

}  // namespace reprise::internal::chain
