#include "oracle/persistent.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "reprise/check/simulate.h"
#include "reprise/model/lower.h"
#include "reprise/model/plan.h"

namespace reprise::testing {
namespace {

class BranchSchedules {
 public:
  BranchSchedules(const Join& join, Graph graph, size_t limit, bool inputs_only)
      : join_(join),
        graph_(std::move(graph)),
        index_(join),
        limit_(limit),
        inputs_only_(inputs_only) {
    for (const Branch& branch : join.branches) {
      stored_.emplace_back(branch.stages.size() + 1, false);
      kept_.emplace_back(branch.stages.size(), -1);
      left_.push_back(branch.stages.size());
    }
  }

  bool run() {
    stored_[0][0] = true;
    forward(0, 0, true);
    return count_ <= limit_;
  }

  std::vector<PeakAndTime> found;

 private:
  size_t stages(size_t b) const { return join_.branches[b].stages.size(); }

  // Goes on from stage k of branch b, on the way to the loss.
  void forward(size_t b, size_t k, bool must_store) {
    if (count_ > limit_) return;
    if (k == stages(b)) {
      if (b + 1 < join_.branches.size()) {
        stored_[b + 1][0] = true;
        forward(b + 1, 0, true);
        return;
      }
      runs_.push_back({index_.loss(), 0});
      next_piece();
      runs_.pop_back();
      return;
    }
    with_each_way(b, k, must_store, [&](bool store) { forward(b, k + 1, store); });
  }

  // Calls go_on(must_store) for each way to run stage k in a pass: kept, or swept.
  template <class GoOn>
  void with_each_way(size_t b, size_t k, bool must_store, const GoOn& go_on) {
    const bool was_stored = stored_[b][k];
    if (!inputs_only_ || k + 1 == stages(b)) keep(b, k, false, [&] { go_on(true); });
    for (const int32_t variant :
         sweep_variants(graph_, index_.forward(b, k), join_.branches[b].stages[k])) {
      runs_.push_back({index_.forward(b, k), variant});
      stored_[b][k] = true;
      go_on(false);
      stored_[b][k] = was_stored;
      if (!must_store) go_on(false);
      runs_.pop_back();
    }
  }

  template <class GoOn>
  void keep(size_t b, size_t k, bool stops, const GoOn& go_on) {
    const bool was_stored = stored_[b][k];
    const Stage& stage = join_.branches[b].stages[k];
    for (size_t o = 0; o < stage.options.size(); ++o) {
      kept_[b][k] = static_cast<int32_t>(o);
      stored_[b][k] = false;
      runs_.push_back({index_.forward(b, k), stops ? stopped_variant(stage, o) : kept_[b][k] + 1});
      go_on();
      runs_.pop_back();
      stored_[b][k] = was_stored;
      kept_[b][k] = -1;
    }
  }

  // Reverses the top piece of any branch that has one left.
  void next_piece() {
    if (count_ > limit_) return;
    bool done = true;
    for (size_t b = 0; b < left_.size(); ++b) {
      const size_t top = left_[b];
      if (top == 0) continue;
      done = false;
      if (kept_[b][top - 1] >= 0) {
        backward(b, top - 1);
        next_piece();
        runs_.pop_back();
      } else {
        size_t start = top - 1;
        while (!stored_[b][start]) --start;
        pass(b, start, start, top - 1, true);
      }
      left_[b] = top;
    }
    if (done) record();
  }

  void backward(size_t b, size_t k) {
    runs_.push_back({index_.backward(b, k), kept_[b][k]});
    left_[b] = k;
  }

  // A pass inside the block that begins at `first`: goes on from stage k, and ends at `end`, whose
  // backward is next.
  void pass(size_t b, size_t first, size_t k, size_t end, bool must_store) {
    if (count_ > limit_) return;
    if (k == end) {
      keep(b, k, true, [&] { reverse(b, first, k + 1); });
      return;
    }
    with_each_way(b, k, must_store, [&](bool store) { pass(b, first, k + 1, end, store); });
  }

  // Runs the backwards of the block that can run, then its next pass or the next piece.
  void reverse(size_t b, size_t first, size_t end) {
    const size_t before = runs_.size(), left = left_[b];
    size_t next = end;
    while (next > first && kept_[b][next - 1] >= 0) backward(b, --next);
    if (next == first) {
      next_piece();
    } else {
      size_t start = next - 1;
      while (!stored_[b][start]) --start;
      pass(b, first, start, next - 1, true);
    }
    left_[b] = left;
    runs_.resize(before);
  }

  // Returns whether the backwards of stages that share weights run in plain training's order.
  bool in_order() const {
    std::vector<std::vector<size_t>> moment;
    for (size_t b = 0; b < left_.size(); ++b) {
      moment.emplace_back();
      for (size_t k = 0; k < stages(b); ++k) {
        const auto is_it = [&](const reprise::Run& run) { return run.op == index_.backward(b, k); };
        moment[b].push_back(
            static_cast<size_t>(std::find_if(runs_.begin(), runs_.end(), is_it) - runs_.begin()));
      }
    }
    for (const SharedWeights& uses : join_.shared) {
      for (const auto& [b, k] : uses) {
        for (const auto& [c, m] : uses) {
          if (b > c && moment[b][k] > moment[c][m]) return false;
        }
      }
    }
    return true;
  }

  void record() {
    if (++count_ > limit_ || !in_order()) return;
    const Timeline timeline = simulate(graph_, with_frees(graph_, runs_));
    found.push_back({timeline.peak.count(), timeline.time.count()});
  }

  const Join& join_;
  Graph graph_;
  JoinIndex index_;
  size_t limit_;
  bool inputs_only_;
  size_t count_ = 0;
  std::vector<reprise::Run> runs_;
  std::vector<std::vector<bool>> stored_;
  std::vector<std::vector<int32_t>> kept_;
  std::vector<size_t> left_;  // by branch: how many stages are not reversed
};

std::optional<std::vector<PeakAndTime>> frontier_of(const Join& join, Graph graph, size_t limit,
                                                    bool inputs_only = false) {
  BranchSchedules schedules(join, std::move(graph), limit, inputs_only);
  if (!schedules.run()) return std::nullopt;
  return unbeaten(std::move(schedules.found));
}

}  // namespace

std::vector<int32_t> sweep_variants(const Graph& graph, OpIndex forward, const Stage& stage) {
  std::vector<Variant> all = graph.ops[static_cast<size_t>(forward)].variants;
  all.resize(1 + stage.options.size());
  const auto memory = [&](const Variant& variant) {
    int64_t sum = variant.workspace.count();
    for (const ValueIndex value : variant.writes) {
      sum += graph.values[static_cast<size_t>(value)].bytes.count();
    }
    return sum;
  };
  std::vector<int32_t> variants;
  for (size_t v = 0; v < all.size(); ++v) {
    bool beaten = !all[v].consumes.empty();
    for (size_t other = 0; other < all.size(); ++other) {
      if (!all[other].consumes.empty()) continue;
      const bool no_worse = all[other].time <= all[v].time && memory(all[other]) <= memory(all[v]);
      const bool better = all[other].time < all[v].time || memory(all[other]) < memory(all[v]);
      beaten = beaten || (no_worse && (better || other < v));
    }
    if (!beaten) variants.push_back(static_cast<int32_t>(v));
  }
  return variants;
}

std::vector<PeakAndTime> unbeaten(std::vector<PeakAndTime> all) {
  std::sort(all.begin(), all.end(), [](const PeakAndTime& a, const PeakAndTime& b) {
    return a.peak != b.peak ? a.peak < b.peak : a.time < b.time;
  });
  std::vector<PeakAndTime> best;
  for (const PeakAndTime& point : all) {
    if (best.empty() || point.time < best.back().time) best.push_back(point);
  }
  return best;
}

// A chain is one branch, and its graph has the order of that of a join.
std::optional<std::vector<PeakAndTime>> persistent_frontier(const Chain& chain, size_t limit,
                                                            bool inputs_only) {
  Join one;
  one.branches = {{.name = chain.name, .input = chain.input, .stages = chain.stages}};
  return frontier_of(one, lower(chain), limit, inputs_only);
}

std::optional<std::vector<PeakAndTime>> branch_frontier(const Join& join, size_t limit) {
  return frontier_of(join, lower(join), limit);
}

std::optional<int64_t> best_within(const std::vector<PeakAndTime>& frontier, int64_t budget) {
  std::optional<int64_t> best;
  for (const PeakAndTime& point : frontier) {
    if (point.peak <= budget) best = point.time;
  }
  return best;
}

}  // namespace reprise::testing
