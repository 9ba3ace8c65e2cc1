#include "plan/chain_trace.h"

#include "plan/chain_table.h"
#include "plan/step_function.h"
#include "reprise/model/errors.h"
#include "reprise/model/lower.h"

namespace reprise::internal {
namespace {

struct Segment {
  size_t first = 0;
  size_t last = 0;
  bool pinned = false;
  int64_t memory = 0;
};

// The best way found so far to begin a segment: keep its first stage with `option`, or, when
// checkpoint > 0, sweep to there.
struct Branch {
  int64_t cost = kInfeasible;
  size_t option = 0;
  size_t checkpoint = 0;
};

class Tracer {
 public:
  Tracer(const ChainModel& model, const CellCost& cell_cost)
      : model_(model), cell_cost_(cell_cost), index_{model.stages} {}

  Trace run(int64_t memory) {
    push({0, model_.stages, true, memory});
    while (!stack_.empty()) {
      const Task task = stack_.back();
      stack_.pop_back();
      if (task.is_run) {
        trace_.runs.push_back(task.run);
      } else {
        expand(task.segment);
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

  // A branch that is feasible and cheaper than the best becomes the best.
  static void offer(Branch& best, const Branch& branch) {
    if (branch.cost < best.cost) best = branch;
  }

  void expand(const Segment& segment) {
    if (segment.first == model_.stages) {
      trace_.runs.push_back({index_.loss(), 0});
      return;
    }
    Branch best;
    consider_keeping(segment, best);
    consider_checkpoints(segment, best);
    if (best.cost == kInfeasible)
      throw InternalError("the tables hold a plan that cannot be traced");
    if (best.checkpoint == 0) {
      keep(segment, best.option);
    } else {
      checkpoint(segment, best.checkpoint);
    }
  }

  Segment after_keeping(const Segment& s, const KeepOption& option) const {
    const int64_t given_back = model_.given_back(s.first, option, s.pinned);
    return {s.first + 1, s.last, option.reads_output,
            s.memory - option.saved - model_.x[s.first + 1] + given_back};
  }
  Segment right_of(const Segment& s, size_t j) const {
    return {j, s.last, false, s.memory - model_.x[j]};
  }
  Segment left_of(const Segment& s, size_t j) const {
    return {s.first, j - 1, s.pinned, s.memory - model_.weights(j, s.last)};
  }
  int64_t cost_of(const Segment& s) const {
    return cell_cost_(s.first, s.last, s.pinned, s.memory);
  }

  void consider_keeping(const Segment& s, Branch& best) const {
    const std::vector<KeepOption>& options = model_.options[s.first];
    for (size_t o = 0; o < options.size(); ++o) {
      const int64_t backward = model_.weights(s.first + 1, s.last) + options[o].backward -
                               model_.given_back(s.first, options[o], s.pinned);
      if (model_.g[s.last + 1] + options[o].forward > s.memory || backward > s.memory) continue;
      int64_t rest = 0;
      if (s.first < s.last) rest = cost_of(after_keeping(s, options[o]));
      if (rest != kInfeasible) offer(best, {options[o].cost + rest, o, 0});
    }
  }

  void consider_checkpoints(const Segment& s, Branch& best) const {
    Sweep sweep(model_, s.first);
    for (size_t j = s.first + 1; j <= s.last; ++j) {
      sweep.extend();
      const int64_t swept = cost_at(sweep.steps(), s.memory - model_.g[s.last + 1]);
      if (swept == kInfeasible) return;  // a longer sweep needs no less
      if (swept >= best.cost) return;    // nor does it cost less
      const int64_t right = cost_of(right_of(s, j));
      const int64_t left = cost_of(left_of(s, j));
      if (right == kInfeasible || left == kInfeasible) continue;
      offer(best, {swept + right + left, 0, j});
    }
  }

  void keep(const Segment& s, size_t option) {
    const auto o = static_cast<int32_t>(option);
    trace_.cost += model_.options[s.first][option].cost;
    trace_.runs.push_back({index_.forward(s.first), o + 1});
    push(Run{index_.backward(s.first), o});
    if (s.first < s.last) push(after_keeping(s, model_.options[s.first][option]));
  }

  void checkpoint(const Segment& s, size_t j) {
    for (size_t k = s.first; k < j; ++k) {
      const int64_t input = k == s.first ? 0 : model_.x[k];
      const int64_t room = s.memory - model_.g[s.last + 1] - input;
      // Memory ascending, cost descending: the last that fits is the cheapest.
      const SweepVariant* best = nullptr;
      for (const SweepVariant& way : model_.sweeps[k]) {
        if (way.memory <= room) best = &way;
      }
      trace_.cost += best->cost;
      trace_.runs.push_back({index_.forward(k), best->variant});
    }
    push(left_of(s, j));
    push(right_of(s, j));
  }

  const ChainModel& model_;
  const CellCost& cell_cost_;
  ChainIndex index_;
  Trace trace_;
  std::vector<Task> stack_;
};

}  // namespace

Trace trace(const ChainModel& model, const CellCost& cell_cost, int64_t memory) {
  return Tracer(model, cell_cost).run(memory);
}

}  // namespace reprise::internal
