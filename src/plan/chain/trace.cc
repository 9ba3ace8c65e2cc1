#include "plan/chain/trace.h"

#include <utility>

#include "plan/chain/branches.h"
#include "plan/chain/cost_curve.h"
#include "reprise/model/errors.h"
#include "reprise/model/lower.h"

namespace reprise::internal::chain {
namespace {

struct Segment {
  Cell cell;
  int64_t memory = 0;
};

Cell make_cell(const ChainCells& cells, size_t first, size_t last, bool pinned, int option) {
  return {static_cast<int32_t>(first), static_cast<int32_t>(last),
          static_cast<int32_t>(cells.slot(first, last, pinned, option)),
          static_cast<int16_t>(option), pinned};
}

class Tracer {
 public:
  Tracer(const ChainModel& model, const ChainCells& cells, const CellCost& cell_cost, int64_t grid)
      : model_(model), cells_(cells), cell_cost_(cell_cost), grid_(grid), index_{model.stages} {}

  Trace run(size_t first, size_t last, bool pinned, int64_t memory) {
    push({make_cell(cells_, first, last, pinned, -1), memory});
    while (!stack_.empty()) {
      const Task task = stack_.back();
      stack_.pop_back();
      if (task.is_run) {
        trace_.runs.push_back(task.run);
      } else {
        take(task.segment, best_branch(task.segment));
      }
    }
    return std::move(trace_);
  }

 private:
  struct Task {
    bool is_run = false;
    Run run;
    Segment segment;
  };

  void push(const Segment& segment) { stack_.push_back({false, {}, segment}); }
  void push(const Run& run) { stack_.push_back({true, run, {}}); }

  Branch best_branch(const Segment& segment) const {
    Branch best;
    int64_t least = kInfeasible;
    const auto cost_of = [&](int64_t slot, int64_t memory) {
      return slot < 0 ? 0 : cell_cost_(static_cast<size_t>(slot), memory);
    };
    const auto visit = [&](const Branch& branch) {
      if (branch.from > segment.memory) return;
      const int64_t cost = branch.cost - branch.cost % grid_;
      if (cost >= least) return;
      const int64_t right = cost_of(branch.right, segment.memory - branch.right_shift);
      if (right == kInfeasible) return;
      const int64_t left = cost_of(branch.left, segment.memory - branch.left_shift);
      if (left == kInfeasible || cost + right + left >= least) return;
      least = cost + right + left;
      best = branch;
    };
    for_each_branch(model_, cells_, segment.cell, visit, [&](int64_t cost, int64_t memory) {
      return memory > segment.memory || cost - cost % grid_ >= least;
    });
    if (least == kInfeasible) {
      throw InternalError("the tables hold a plan that cannot be traced");
    }
    return best;
  }

  // The part that runs last is pushed first.
  void take(const Segment& s, const Branch& branch) {
    const auto option = static_cast<int32_t>(branch.option);
    const auto first = static_cast<size_t>(s.cell.first), last = static_cast<size_t>(s.cell.last);
    const auto part = [&](size_t from, size_t to, bool pinned, int of, int64_t shift) {
      return Segment{make_cell(cells_, from, to, pinned, of), s.memory - shift};
    };
    const auto right = [&](size_t from, bool pinned) {
      return part(from, last, pinned, s.cell.option, branch.right_shift);
    };
    switch (branch.kind) {
      case BranchKind::kLoss:
        trace_.runs.push_back({index_.loss(), 0});
        return;
      case BranchKind::kReverse:
        trace_.runs.push_back({index_.backward(branch.at), option});
        return;
      case BranchKind::kKeep:
        keep(branch, branch.right < 0);
        push(Run{index_.backward(branch.at), option});
        if (branch.right >= 0) push(right(first + 1, reads_output(branch)));
        return;
      case BranchKind::kCheckpoint:
        sweep(s, branch);
        push(part(first, branch.at - 1, s.cell.pinned, -1, branch.left_shift));
        push(right(branch.at, false));
        return;
      case BranchKind::kDrop:
        sweep(s, branch);
        keep(branch, false);
        push(part(first, branch.at, s.cell.pinned, option, branch.left_shift));
        push(right(branch.at + 1, reads_output(branch)));
        return;
    }
  }

  bool reads_output(const Branch& branch) const {
    return model_.options[branch.at][branch.option].reads_output;
  }

  void keep(const Branch& branch, bool stops) {
    const KeepOption& option = model_.options[branch.at][branch.option];
    trace_.cost += stops ? option.stopped_cost : option.cost;
    trace_.runs.push_back(
        {index_.forward(branch.at),
         stops ? option.stopped_variant : static_cast<int32_t>(branch.option) + 1});
  }

  void sweep(const Segment& s, const Branch& branch) {
    const auto first = static_cast<size_t>(s.cell.first), last = static_cast<size_t>(s.cell.last);
    int64_t held = model_.g[last + 1];
    if (s.cell.option >= 0) {
      held = model_.package(last, model_.options[last][s.cell.option]);
    }
    for (size_t k = first; k < branch.at; ++k) {
      const int64_t room = s.memory - held - (k == first ? 0 : model_.x[k]);
      // Memory ascends and cost descends, so the last variant that fits is the cheapest.
      const SweepVariant* best = nullptr;
      for (const SweepVariant& way : model_.sweeps[k]) {
        if (way.memory <= room) best = &way;
      }
      trace_.cost += best->cost;
      trace_.runs.push_back({index_.forward(k), best->variant});
    }
  }

  const ChainModel& model_;
  const ChainCells& cells_;
  const CellCost& cell_cost_;
  int64_t grid_;
  ChainIndex index_;
  Trace trace_;
  std::vector<Task> stack_;
};

}  // namespace

Trace trace(const ChainModel& model, const ChainCells& cells, const CellCost& cell_cost,
            int64_t memory, int64_t grid) {
  return Tracer(model, cells, cell_cost, grid).run(0, model.stages, true, memory);
}

Trace trace_segment(const ChainModel& model, const ChainCells& cells, const CellCost& cell_cost,
                    size_t first, size_t last, bool pinned, int64_t memory) {
  return Tracer(model, cells, cell_cost, 1).run(first, last, pinned, memory);
}

}  // namespace reprise::internal::chain
