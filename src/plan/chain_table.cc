#include "plan/chain_table.h"

#include <algorithm>
#include <iterator>
#include <limits>

#include "plan/by_level.h"
#include "plan/chain_branches.h"

namespace reprise::internal {
namespace {

// Tables beyond this are given up like a search beyond its time.
constexpr int64_t kTableLimit = int64_t{1} << 30;

// Fewer cells than this a thread are not worth starting one.
constexpr size_t kCellsForThread = 500;

int useful_threads(const ChainCells& cells, int threads) {
  return std::min(threads, static_cast<int>(cells.order().size() / kCellsForThread) + 1);
}

// What a plan that has this cell pays elsewhere at least: a segment that does not reach the loss
// lies left of a checkpoint or a dropped input, and was swept on the way there.
int64_t paid_before(const ChainModel& model, const Cell& cell) {
  const auto i = static_cast<size_t>(cell.first), l = static_cast<size_t>(cell.last);
  if (l == model.stages) return 0;
  if (cell.option < 0) return model.least_sweep(i, l + 1);
  return model.least_sweep(i, l) + model.options[l][static_cast<size_t>(cell.option)].cost;
}

int64_t floor_of(const ChainModel& model, const ChainCells& cells, const LeastMemory& least,
                 const std::vector<int64_t>& floors, const Cell& cell) {
  const int64_t at_least = least.of(cell);
  int64_t best = kInfeasible;
  const auto visit = [&](const Branch& branch) {
    int64_t need = branch.from;
    if (branch.right >= 0) {
      need = std::max(need, floors[static_cast<size_t>(branch.right)] + branch.right_shift);
    }
    if (branch.left >= 0) {
      need = std::max(need, floors[static_cast<size_t>(branch.left)] + branch.left_shift);
    }
    best = std::min(best, need);
  };
  for_each_branch(model, cells, cell, visit,
                  [&](int64_t /*cost*/, int64_t memory) {
                    return memory >= best || at_least >= best;
                  });
  return best;
}

int64_t rounded_down(int64_t cost, int64_t grid) { return cost - cost % grid; }

// A cell of thousands of branches may take seconds: looks at the clock now and then.
class Patience {
 public:
  explicit Patience(const SearchControl& control) : control_(control) {}
  bool is_over() { return ++asked_ % 64 == 0 && control_.out_of_time(); }

 private:
  const SearchControl& control_;
  int asked_ = 0;
};

// A curve of the table, read at ever smaller memory. Slot -1 is a part that is not there.
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
  Steps steps_;
  size_t count_;  // steps that may still be wanted
};

}  // namespace

std::vector<int64_t> smallest_memory(const ChainModel& model, const ChainCells& cells, int threads,
                                     SearchControl& control) {
  std::vector<int64_t> floors(cells.slots(), kInfeasible);
  const LeastMemory least(model);
  const std::vector<Cell>& order = cells.order();
  const bool complete = for_each_by_level(
      cells.length_ends(), useful_threads(cells, threads),
      [&](int, size_t k) {
        floors[static_cast<size_t>(order[k].slot)] = floor_of(model, cells, least, floors, order[k]);
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
      curves_(cells.slots()) {
  const std::vector<Cell>& order = cells.order();
  bytes_ = static_cast<int64_t>(cells.slots() * (sizeof(StepFunction) + sizeof(int64_t)) +
                                order.size() * sizeof(Cell));
  const int threads = useful_threads(cells, limits.threads);
  std::vector<Envelope> envelopes(static_cast<size_t>(threads));
  complete_ = for_each_by_level(
      cells.length_ends(), threads,
      [&](int thread, size_t k) {
        StepFunction curve = compute(order[k], envelopes[static_cast<size_t>(thread)]);
        bytes_ += static_cast<int64_t>(curve.capacity() * sizeof(Step));
        curves_[static_cast<size_t>(order[k].slot)] = std::move(curve);
      },
      [&](size_t k) {
        control.report(static_cast<double>(k) / static_cast<double>(order.size()));
        return !control.out_of_time() && bytes_ <= kTableLimit;
      });
  complete_ = complete_ && !control.out_of_time();
}

// The memory and the cost beyond which no plan within the limits uses the cell. False: none does.
bool CurveTable::set_caps(const Cell& cell, int64_t least_memory, Envelope& envelope) const {
  const auto slot = static_cast<size_t>(cell.slot);
  int64_t memory = limits_.memory, cost = limits_.cost;
  if (limits_.around != nullptr) {
    if (!limits_.around->needed(slot)) return false;
    memory = limits_.around->most_memory(slot);
    cost -= std::max(limits_.around->least_cost(slot), least_around(cell, least_memory));
  } else {
    // x_i is live and outside m.
    if (cell.first > 0 && memory != kInfeasible) memory -= model_.x[static_cast<size_t>(cell.first)];
    if (cost != kInfeasible) cost -= least_around(cell, least_memory);
  }
  envelope.reset(memory, cost);
  return cost >= 0 && memory >= least_memory;
}

// On what a plan that leaves the cell so much memory pays elsewhere.
int64_t CurveTable::least_around(const Cell& cell, int64_t memory) const {
  const int64_t paid = paid_before(model_, cell);
  if (limits_.bound == nullptr) return paid;
  const bool with_loss = static_cast<size_t>(cell.last) == model_.stages;
  return std::max(paid, with_loss ? limits_.bound->around(cell, memory)
                                  : limits_.bound->around(cell));
}

StepFunction CurveTable::compute(const Cell& cell, Envelope& envelope) const {
  const int64_t least_memory = least_memory_.of(cell);
  if (!set_caps(cell, least_memory, envelope)) return {};
  const Steps zero = zero_function();
  const auto part = [&](int64_t of, int64_t shift) {
    return of < 0 ? Shifted{zero, 0} : Shifted{curves_[static_cast<size_t>(of)], shift};
  };
  const auto visit = [&](const Branch& branch) {
    envelope.add_sum(part(branch.right, branch.right_shift), part(branch.left, branch.left_shift),
                     rounded_down(branch.cost, limits_.grid), branch.from);
  };
  // Beyond the caps, or dearer than an envelope that reaches down as far as can be.
  Patience patience(control_);
  const auto done = [&](int64_t cost, int64_t memory) {
    if (patience.is_over()) return true;
    cost = rounded_down(cost, limits_.grid);
    return cost > envelope.cost_cap() || memory > envelope.memory_cap() ||
           (!envelope.empty() && cost >= envelope.dearest().cost &&
            std::max(memory, least_memory) >= envelope.dearest().memory);
  };
  for_each_branch(model_, cells_, cell, visit, done);
  StepFunction curve = envelope.function();
  prune(cell, curve);
  return curve;
}

// Leaves out the steps that no plan within the limits has.
void CurveTable::prune(const Cell& cell, StepFunction& curve) const {
  const bool with_loss = static_cast<size_t>(cell.last) == model_.stages;
  const auto slot = static_cast<size_t>(cell.slot);
  if (limits_.around != nullptr) {
    std::erase_if(curve, [&](const Step& step) {
      const int64_t rest = limits_.around->cost_leaving(slot, step.memory);
      return rest == kInfeasible || step.cost + rest > limits_.cost;
    });
  }
  if (limits_.bound != nullptr && with_loss) {
    std::erase_if(curve, [&](const Step& step) {
      return step.cost + limits_.bound->around(cell, step.memory) > limits_.cost;
    });
  }
  curve.shrink_to_fit();
}

struct Surroundings::Scratch {
  Envelope envelope;
  StepFunction to_right, to_left;
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
  bytes_ = static_cast<int64_t>(cells.slots() * sizeof(StepFunction));
  const std::vector<Cell>& order = cells.order();
  // Longer segments first: when their turn comes, all plans around them are known.
  std::vector<size_t> ends;
  for (auto end = cells.length_ends().rbegin() + 1; end != cells.length_ends().rend(); ++end) {
    ends.push_back(order.size() - *end);
  }
  ends.push_back(order.size());
  const int threads = useful_threads(cells, table.limits().threads);
  std::vector<Scratch> scratch(static_cast<size_t>(threads));
  complete_ = for_each_by_level(
      ends, threads,
      [&](int thread, size_t k) {
        const Cell& cell = order[order.size() - 1 - k];
        StepFunction& offers = offers_[static_cast<size_t>(cell.slot)];
        if (offers.empty()) return;
        std::reverse(offers.begin(), offers.end());
        offers.shrink_to_fit();
        bytes_ += static_cast<int64_t>(offers.capacity() * sizeof(Step));
        offer_to_parts(cell, scratch[static_cast<size_t>(thread)]);
      },
      [&](size_t) { return !control.out_of_time() && bytes_ <= kTableLimit; });
  complete_ = complete_ && !control.out_of_time();
  table_ = nullptr;
}

int64_t Surroundings::cost_leaving(size_t slot, int64_t memory) const {
  return cost_at(offers_[slot], -memory);
}

// Every plan that leaves the cell so much leaves the parts of each branch what the branch and the
// other part do not take, and the rest of the plan then also has these.
void Surroundings::offer_to_parts(const Cell& cell, Scratch& scratch) {
  const Steps offers = offers_[static_cast<size_t>(cell.slot)];
  const auto visit = [&](const Branch& branch) {
    if (branch.right < 0 && branch.left < 0) return;
    scratch.to_right.clear();
    scratch.to_left.clear();
    collect(branch, offers, scratch);
    add_offers(branch.right, scratch.to_right, scratch);
    add_offers(branch.left, scratch.to_left, scratch);
  };
  const int64_t least = offers.back().cost, most = -offers.front().memory;
  Patience patience(control_);
  for_each_branch(model_, cells_, cell, visit, [&](int64_t cost, int64_t memory) {
    return patience.is_over() || least + rounded_down(cost, table_->limits().grid) > limit_ || memory > most;
  });
}

// What a branch makes of the offers to its cell. From offer to offer there is less memory and more
// cost within the cell, and less cost around it: a stretch of them is passed over when its cheapest
// surroundings with its cheapest inside are too dear.
void Surroundings::collect(const Branch& branch, Steps offers, Scratch& scratch) const {
  const int64_t cost = rounded_down(branch.cost, table_->limits().grid);
  Descent right(*table_, branch.right), left(*table_, branch.left);
  if (offers.back().cost + cost + right.least() + left.least() > limit_) return;
  size_t stride = 1;
  for (size_t k = 0; k < offers.size();) {
    const int64_t memory = -offers[k].memory;
    if (memory < branch.from) return;
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
    const auto add = [&](StepFunction& points, int64_t shift, int64_t rest) {
      if (points.empty() || rest < points.back().cost) points.push_back({shift - memory, rest});
    };
    add(scratch.to_right, branch.right_shift, offers[k].cost + cost + left_cost);
    add(scratch.to_left, branch.left_shift, offers[k].cost + cost + right_cost);
    ++k;
  }
}

void Surroundings::add_offers(int64_t slot, const StepFunction& points, Scratch& scratch) {
  if (slot < 0 || points.empty()) return;
  const std::lock_guard lock(locks_[static_cast<size_t>(slot) % locks_.size()]);
  StepFunction& offers = offers_[static_cast<size_t>(slot)];
  const Steps zero = zero_function();
  Envelope& envelope = scratch.envelope;
  envelope.reset(kInfeasible, kInfeasible);
  envelope.exchange(offers);
  envelope.add_sum({points, 0}, {zero, 0}, 0, zero.front().memory);
  envelope.exchange(offers);
}

}  // namespace reprise::internal
