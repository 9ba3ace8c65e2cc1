// Finds the smallest peak with which every value is made again at most once: Ding-Yong Hong,
// Tzu-Hsien Tsai, Ning Wang, Pangfeng Liu, Jan-Jan Wu, "GPU Memory Usage Optimization for Backward
// Propagation in Deep Network Training", arXiv 2502.12499, 2025.
//
// A set of checkpoints cuts the chain into segments, which run as segments.h says. periodic.cc
// tries some of these sets. This planner finds the best of all of them: the one with the smallest
// peak, and the fastest one within a budget.
//
// | paper                 | here                                                                |
// |-----------------------|---------------------------------------------------------------------|
// | checkpoints           | Cuts; the first is 0, the input of the chain                        |
// | memory of a segment   | Q(c, b), SegmentPeak::second_run(): the most bytes that the stages  |
// |                       | c..b-1 hold when they are kept, beyond the checkpoints before c     |
// | (left out)            | R(c, b), SegmentPeak::first_run(): the most bytes that they hold    |
// |                       | when they are swept, beyond the checkpoints up to c                 |
//
// The paper minimises the peak by dynamic programming. Here the question is whether a set fits into
// P bytes. Let h(b) be the least bytes of all checkpoints up to b, if all that runs before b fits.
// With x_b for the bytes of a checkpoint (0 for the input, which is always held),
//
//   h(0) = fixed + input;  h(b) = x_b + min { h(c) : c < b, h(c) - x_c + Q(c, b) <= P,
//                                             h(c) + R(c, b) <= P }.
//
// Fewer bytes are better in the minimum and in both tests, so that the recurrence is exact. The
// last segment may begin at a if h(a) - x_a + Q(a, L) <= P. A set takes the time of plain training
// and of the fast forwards before a, so the first such a is the fastest. The smallest P is found by
// bisection.
//
// All tests of one Q are running maxima over sums of the sizes, while c falls. Q(c, b) grows then,
// because more is held, and the loop over c ends when Q alone is above P.
//
// Complexity: O(L * longest segment) a question, and times log(bytes) for the smallest peak. The
// curve asks log(bytes) questions for each of its points, which are L at most.
//
// Not handled: more than one re-run a stage; any option but the first. The planner `chain` has
// both, and on most chains it has plans in less memory.
//
// Tests: oracle/min_peak_test.cc (equal to the best of all sets of checkpoints, as the simulator
// costs them, at every budget), and the tests of every planner in
// property/planner_property_test.cc.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "plan/baselines/baselines.h"
#include "plan/baselines/segments.h"
#include "plan/common/candidates.h"
#include "plan/common/search_control.h"

namespace reprise::internal::baselines {

using common::Candidates;
using common::SearchControl;

namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

// StageLevels are the bytes that a stage holds while it runs, with its first option. No number has
// the input of the chain, which is always live.
struct StageLevels {
  int64_t checkpoint = 0;  // x_i; 0 for the first stage
  int64_t stays = 0;       // x_i, if the backward of the stage reads it
  int64_t before = 0;      // T_i: x_i and what the stages before hold, if all of them are kept
  int64_t waits = 0;       // g_i, and the weight gradients from stage i on
  // As the first stage of a segment, with x_i. A forward also holds what waits behind the segment.
  int64_t forward_first = 0, backward_first = 0;
  int64_t forward = 0, backward = 0;   // as a later stage of a segment, with T_i
  int64_t sweep_first = 0, sweep = 0;  // the fast forward as first and as later stage
};

std::vector<StageLevels> levels_of(const Chain& chain) {
  const size_t stages = chain.stages.size();
  std::vector<StageLevels> levels(stages);
  const auto x = [&](size_t k) { return boundary_bytes(chain, k).count(); };
  const auto g = [&](size_t k) { return boundary_gradient_bytes(chain, k).count(); };
  int64_t before = 0;
  for (size_t i = 0; i < stages; ++i) {
    const Stage& stage = chain.stages[i];
    const StageOption& option = stage.options.front();
    const int64_t saved = option.saved.count(), input = i == 0 ? 0 : x(i);
    const bool input_stays =
        option.reads_input || (i > 0 && chain.stages[i - 1].options.front().reads_output);
    StageLevels& level = levels[i];
    level.checkpoint = input;
    level.stays = option.reads_input ? input : 0;
    before += input_stays ? input : 0;
    level.before = before;
    const int64_t given_back = option.consumes_input ? input : 0;  // by the backward if it reads it
    const int64_t forward =
        x(i + 1) + saved + option.forward.workspace.count() - (option.reads_input ? 0 : given_back);
    level.forward_first = input + forward;
    level.forward = before + (input_stays ? 0 : input) + forward;
    const int64_t read = g(i + 1) + saved + (option.reads_output ? x(i + 1) : 0);
    const int64_t backward = (option.consumes ? 0 : read) + g(i) + stage.weight_gradient.count() +
                             option.backward.workspace.count() -
                             (option.reads_input ? given_back : 0);
    level.backward_first = level.stays + backward;
    level.backward = before + backward;
    level.sweep_first = x(i + 1) + stage.forward.workspace.count();
    level.sweep = input + level.sweep_first;
    before += saved;
  }
  int64_t weights = 0;  // of the stages behind
  for (size_t i = stages; i-- > 0;) {
    levels[i].backward_first += weights;
    levels[i].backward += weights;
    weights += chain.stages[i].weight_gradient.count();
    levels[i].waits = g(i) + weights;
  }
  return levels;
}

// SegmentPeak follows Q(c, b) and R(c, b) for one b while c falls, one stage a call of add().
class SegmentPeak {
 public:
  // `waits` bytes wait behind the segment. The loss, with T_L, runs at its end; or nothing does.
  explicit SegmentPeak(int64_t waits, std::optional<int64_t> loss = std::nullopt)
      : waits_(waits), later_(loss) {}

  void add(const StageLevels& first) {
    first_run_ = std::max(first.sweep_first, later_sweeps_);
    later_sweeps_ = std::max(later_sweeps_, first.sweep);
    second_run_ = std::max(waits_ + first.forward_first, first.backward_first);
    // This segment holds the part of T_i behind its own input, and the input if that stays.
    if (later_) second_run_ = std::max(second_run_, *later_ - first.before + first.stays);
    const int64_t own = std::max(waits_ + first.forward, first.backward);
    later_ = std::max(later_.value_or(own), own);
  }
  int64_t second_run() const { return second_run_; }  // Q(c, b)
  int64_t first_run() const { return first_run_; }    // R(c, b)
  // Every longer segment holds at least so many bytes in one of its runs.
  int64_t least_of_longer() const { return std::max(second_run_, later_sweeps_); }

 private:
  int64_t waits_;
  std::optional<int64_t> later_;  // the most of all stages behind the first, with T_i
  int64_t later_sweeps_ = 0;
  int64_t second_run_ = 0, first_run_ = 0;
};

// CheckpointSets answers questions about all sets of checkpoints of one chain.
class CheckpointSets {
 public:
  explicit CheckpointSets(const Chain& chain)
      : levels_(levels_of(chain)), base_((chain.fixed + chain.input.bytes).count()) {
    const Stage& last = chain.stages.back();
    const int64_t output = chain.loss.consumes ? 0 : last.output.count();
    SegmentPeak peak(0, levels_.back().before + last.options.front().saved.count() + output +
                            boundary_gradient_bytes(chain, levels_.size()).count() +
                            chain.loss.cost.workspace.count());
    tails_.resize(levels_.size());
    for (size_t a = levels_.size(); a-- > 0;) {
      peak.add(levels_[a]);
      tails_[a] = peak.second_run();
    }
    int64_t time = chain.loss.cost.time.count();
    for (const Stage& stage : chain.stages) {
      const StageOption& option = stage.options.front();
      time += (option.forward.time + option.backward.time).count();
    }
    for (const Stage& stage : chain.stages) {
      times_.push_back(time);
      time += stage.forward.time.count();
    }
  }

  std::vector<Run> runs(const Cuts& cuts) const { return segment_runs(levels_.size(), cuts); }
  Nanos time(const Cuts& cuts) const { return Nanos(times_[cuts.back()]); }
  int64_t plain_peak() const { return base_ + tails_[0]; }

  // Returns the fastest set within so many bytes. Returns nothing if there is none, or no time.
  std::optional<Cuts> fastest(int64_t bytes, const SearchControl& control) const {
    std::vector<int64_t> held{base_};  // h
    std::vector<size_t> before{0};     // the checkpoint before each one
    for (size_t a = 0; a < levels_.size() && !control.out_of_time(); ++a) {
      if (a > 0) add_checkpoint(a, bytes, held, before);
      if (held[a] == kNever || held[a] - levels_[a].checkpoint + tails_[a] > bytes) continue;
      Cuts cuts{a};
      while (cuts.back() != 0) cuts.push_back(before[cuts.back()]);
      std::reverse(cuts.begin(), cuts.end());
      return cuts;
    }
    return std::nullopt;
  }

  struct Smallest {
    Cuts cuts;
    int64_t bytes = 0;
  };
  // Returns the smallest set of those that take no longer than `limit`, of which one fits into
  // `enough` bytes. If time runs out, returns the smallest that was found, or nothing.
  std::optional<Smallest> smallest(int64_t enough, Nanos limit, SearchControl& control) const {
    std::optional<Smallest> best;
    const auto fits = [&](int64_t bytes) {
      control.report(-1);
      std::optional<Cuts> cuts = fastest(bytes, control);
      if (!cuts || time(*cuts) > limit) return false;
      best = {std::move(*cuts), bytes};
      return true;
    };
    if (!fits(enough)) return std::nullopt;
    int64_t too_few = base_ - 1;
    while (best->bytes - too_few > 1) {
      const int64_t middle = too_few + (best->bytes - too_few) / 2;
      if (fits(middle)) continue;
      if (control.out_of_time()) break;
      too_few = middle;
    }
    return best;
  }

 private:
  void add_checkpoint(size_t b, int64_t bytes, std::vector<int64_t>& held,
                      std::vector<size_t>& before) const {
    int64_t best = kNever;
    size_t from = 0;
    SegmentPeak peak(levels_[b].waits);
    for (size_t c = b; c-- > 0;) {
      peak.add(levels_[c]);
      const bool fits = held[c] < best &&
                        held[c] - levels_[c].checkpoint + peak.second_run() <= bytes &&
                        held[c] + peak.first_run() <= bytes;
      if (fits) {
        best = held[c];
        from = c;
      }
      if (base_ + peak.least_of_longer() > bytes) break;
    }
    held.push_back(best == kNever ? kNever : best + levels_[b].checkpoint);
    before.push_back(from);
  }

  std::vector<StageLevels> levels_;
  int64_t base_;
  std::vector<int64_t> tails_;  // by stage a: Q(a, L)
  std::vector<int64_t> times_;  // by stage a: the time of all sets whose last segment begins there
};

// Returns the fastest set within the budget, or the smallest one if none fits. Returns nothing if
// time runs out first.
std::optional<Cuts> best_set(const CheckpointSets& sets, Bytes budget, SearchControl& control) {
  control.report(-1);
  if (std::optional<Cuts> cuts = sets.fastest(budget.count(), control)) return cuts;
  auto smallest = sets.smallest(sets.plain_peak(), Nanos(kNever), control);
  return smallest ? std::optional(std::move(smallest->cuts)) : std::nullopt;
}

}  // namespace

bool consider_min_peak(const Chain& chain, Bytes budget, Candidates& candidates,
                       SearchControl& control) {
  const CheckpointSets sets(chain);
  const std::optional<Cuts> cuts = best_set(sets, budget, control);
  if (cuts) candidates.consider(sets.runs(*cuts));
  return !control.out_of_time();
}

Answer min_peak_chain(const ChainProblem& problem) {
  SearchControl control(problem.options, "min_peak");
  Candidates candidates(problem.graph, problem.budget);
  const CheckpointSets sets(problem.chain);
  const std::optional<Cuts> cuts = best_set(sets, problem.budget, control);
  if (cuts) candidates.consider(sets.runs(*cuts));
  return candidates.answer(cuts ? sets.time(*cuts) : Nanos(), !control.out_of_time());
}

// Behind each point comes the fastest set that needs fewer bytes.
Curve min_peak_frontier(const ChainProblem& problem) {
  SearchControl control(problem.options, "min_peak");
  const CheckpointSets sets(problem.chain);
  Curve curve;
  int64_t bytes = sets.plain_peak();
  while (const std::optional<Cuts> fastest = sets.fastest(bytes, control)) {
    const Nanos time = sets.time(*fastest);
    const auto smallest = sets.smallest(bytes, time, control);
    if (!smallest) break;
    curve.points.push_back({Bytes(smallest->bytes), Bytes(smallest->bytes), time, time});
    bytes = smallest->bytes - 1;
  }
  std::reverse(curve.points.begin(), curve.points.end());
  return curve;
}

}  // namespace reprise::internal::baselines
