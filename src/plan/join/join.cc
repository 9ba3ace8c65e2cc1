// clang-format off
// This planner finds the fastest persistent schedule of chains that meet in one loss, and chooses
// the order in which their backwards run.
//
// O. Beaumont, J. Herrmann, G. Pallez, A. Shilova, "Optimal memory-aware backpropagation of deep
// join networks", Phil. Trans. R. Soc. A 378, 2020. The paper has stages that are all equal, and
// counts slots. Here stages differ, and every byte counts as in chain.cc, whose recurrence gives
// the cost of a segment. No full text of the paper was at hand: the recurrence below is our own.
//
// The schedule class is called "persistent-branches". On the way to the loss, the branches run one
// after the other, in the order of the file. Each stage is kept with an option, or swept; what is
// stored stays until it is reversed. So a branch is a stack of pieces: kept stages, and blocks of
// swept stages behind a stored activation. Behind the loss the pieces are reversed from the top of
// their branches, in any interleaving, one piece at a time. A block is reversed by a persistent
// schedule of its own (C in chain.cc). While a piece of one branch is reversed, the others wait
// with the gradient of their top and with what they hold below.
//
// | symbol        | identifier                | meaning                                           |
// |---------------|---------------------------|---------------------------------------------------|
// | M             | LabelLimits::memory       | budget without the fixed bytes and the inputs     |
// | b, k          | Place                     | a branch, and the boundary up to which it stands  |
// | H_b(k)        | Label::held               | held below boundary k, with x_k only if pinned    |
// | p_b(k)        | BranchPieces::pending()   | g_k and the weight gradients of the stages from k |
// | T_b           | finish()                  | held by the whole branch, x_L included            |
// | F_b           | Label::forward            | most bytes that the branch has on the way up      |
// | t             | Label::time               | time beyond the least time of every stage         |
//
// The stacks are built from below. A state is a place in every branch, and a label is a way to get
// there: (t, H_1..H_n, F_2..F_n). The piece from k to e of branch b extends it if it can be
// reversed in
//
//   M - sum of H - sum over the other branches c of p_c        (room())
//
// bytes, which hold x_k, g_e, the weight gradients of b, and all that the segment needs. The last
// label of the best plan lies on top, so the steps backwards from it are the order of the
// backwards. At the loss, with its workspace, sum of (T_b + g_L) <= M. On the way up, F_b and the
// T of the branches before b fit into M.
//
// Where branches share weights, the backwards of a later branch come first, so that gradients are
// summed as in plain training. What lies below is reversed later, so a piece of branch b needs that
// every branch before b stands above its own uses already (precedence_of()). This depends on the
// places alone, and plain training keeps it.
//
// All tests and costs only grow with t, with every H_b, and with every F_b, so that labels which
// another one beats in all of them are left out. H_n counts only in the sum. This keeps the search
// exact. Coarse passes round what is held up to a grid: they find plans quickly, whose times bound
// the labels of the exact pass.
//
// Complexity: the states are the product of 2 (L_b + 1) over the branches, each with its labels;
// a label has O(sum of L_b) extensions. How many labels a state has depends on the number of
// different sums of the sizes. Curves of segments: as in chain.cc, once a branch.
//
// Not handled: more than 6 branches, other orders of the forwards, blocks of several branches that
// are reversed in turns. If time runs out, the answer is the best plan that was found, and the
// bound is the sum of the least times.
//
// Tests: oracle/join_test.cc (equal to the best of all schedules of the class, which are written
// down from its definition and simulated; never below the best of all plans, over all
// interleavings), unit/join_test.cc (the graph of a join, its file, its mistakes, no time).
// clang-format on
#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "plan/common/by_level.h"
#include "plan/common/candidates.h"
#include "plan/common/search_control.h"
#include "plan/join/labels.h"
#include "plan/join/planner.h"
#include "reprise/model/errors.h"
#include "reprise/model/lower.h"

namespace reprise::internal::join {

using common::Candidates;
using common::SearchControl;
using common::thread_count;

namespace {

constexpr int64_t kGrids[] = {8, 16, 32, 128, 1024};  // coarse passes: parts of the memory

// Returns at least the bytes of every plan. So a budget without a limit has a size, and sums of
// bytes that are rounded up stay within 64 bits.
int64_t most_bytes(const Graph& graph) {
  Bytes sum;
  for (const Value& value : graph.values) sum += value.bytes;
  for (const Op& op : graph.ops) {
    for (const Variant& variant : op.variants) sum += variant.workspace;
  }
  return std::min(sum.count(), INT64_MAX / 4);
}

class JoinSearch {
 public:
  JoinSearch(const JoinProblem& problem, SearchControl& control)
      : problem_(problem),
        index_(problem.join),
        precedence_(precedence_of(problem.join)),
        control_(control) {
    outside_ = problem.join.fixed.count();
    for (const Branch& branch : problem.join.branches) outside_ += branch.input.bytes.count();
    memory_ = std::min(problem.budget.count() - outside_, most_bytes(problem.graph));
    const ChainLoss& loss = problem.join.loss;
    loss_ = {loss.cost.workspace.count(), loss.consumes};
    least_time_ = loss.cost.time.count();
    const int64_t most = std::max(memory_, problem.baseline.peak.count() - outside_);
    const int threads = thread_count(problem.options.threads);
    for (const Branch& branch : problem.join.branches) {
      branches_.push_back(std::make_unique<BranchPieces>(branch, most, threads, control));
      least_time_ += branches_.back()->least_time();
      search_memory_ += branches_.back()->memory();
      complete_ = complete_ && branches_.back()->complete();
    }
  }

  Answer answer() {
    Candidates candidates(problem_.graph, problem_.budget);
    candidates.consider(plain_runs(problem_.graph));
    bool exact = complete_;
    if (complete_) {
      for (const int64_t parts : kGrids) {
        if (memory_ / parts > 1) improve(memory_ / parts);
      }
      exact = improve(1);
    }
    if (best_) candidates.consider(runs_of(*best_));
    Answer answer =
        candidates.answer(Nanos(least_time_ + (exact ? best_time_.value_or(0) : 0)), false);
    answer.search_memory = search_memory_;
    if (!candidates.fits() && exact) refuse(answer);
    return answer;
  }

 private:
  // Searches plans that are faster than the best one. Returns whether the search was complete.
  bool improve(int64_t grid) {
    LabelLimits limits{.memory = memory_, .grid = grid};
    if (best_time_) limits.time = *best_time_;
    LabelResult result = search_labels(branches_, loss_, precedence_, limits, control_);
    search_memory_ = std::max(search_memory_, result.memory);
    if (result.steps) {
      best_ = std::move(result.steps);
      best_time_ = result.time;
    }
    return result.complete && grid == 1;
  }

  // No plan fits. Finds the smallest budget of the class by bisection.
  void refuse(Answer& answer) {
    int64_t too_few = memory_;
    int64_t enough = std::max(problem_.baseline.peak.count() - outside_, memory_ + 1);
    std::optional<std::vector<Step>> smallest;
    const auto fits = [&](int64_t memory) {
      LabelLimits limits{.memory = memory, .any_time = true};
      LabelResult result = search_labels(branches_, loss_, precedence_, limits, control_);
      if (result.steps) smallest = std::move(result.steps);
      return result.steps.has_value();
    };
    if (!fits(enough)) {
      if (control_.out_of_time()) return;
      throw InternalError("the planner of joins refuses plain training");
    }
    while (enough - too_few > 1) {
      const int64_t middle = too_few + (enough - too_few) / 2;
      const bool found = fits(middle);
      if (!found && control_.out_of_time()) break;
      (found ? enough : too_few) = middle;
    }
    answer.smallest_budget = Bytes(enough + outside_);
    if (enough - too_few > 1) return;
    answer.termination = Termination::kInfeasible;
    answer.blocking_op = common::peak_op(problem_.graph, runs_of(*smallest));
  }

  // Positions are those of lower(join), whatever the order of the backwards.
  std::vector<Run> runs_of(const std::vector<Step>& steps) const {
    std::vector<Run> runs;
    for (size_t b = 0; b < branches_.size(); ++b) {
      std::vector<Run> own;
      for (const Step& step : steps) {
        if (step.branch == b) branches_[b]->add_forward(step.piece, own);
      }
      append(b, own, runs);
    }
    runs.push_back({index_.loss(), 0});
    for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
      std::vector<Run> own;
      branches_[step->branch]->add_reversal(step->piece, step->pinned, step->memory, own);
      append(step->branch, own, runs);
    }
    return runs;
  }

  void append(size_t branch, const std::vector<Run>& own, std::vector<Run>& runs) const {
    const ChainIndex chain{branches_[branch]->stages()};
    for (const Run& run : own) {
      const size_t stage = chain.stage_of(run.op).value();
      const bool forward = run.op == chain.forward(stage);
      runs.push_back(
          {forward ? index_.forward(branch, stage) : index_.backward(branch, stage), run.variant});
    }
  }

  const JoinProblem& problem_;
  JoinIndex index_;
  Precedence precedence_;
  SearchControl& control_;
  std::vector<std::unique_ptr<BranchPieces>> branches_;
  LossLevel loss_;
  int64_t outside_ = 0;     // the fixed bytes and the inputs
  int64_t memory_ = 0;      // M
  int64_t least_time_ = 0;  // of every stage and the loss
  bool complete_ = true;    // the costs of all segments are known
  Bytes search_memory_;
  std::optional<std::vector<Step>> best_;
  std::optional<int64_t> best_time_;
};

}  // namespace

Answer plan_branches(const JoinProblem& problem) {
  if (problem.join.branches.size() > kMostBranches) {
    throw InputError("planner 'join' takes at most " + std::to_string(kMostBranches) +
                     " branches; plan the join with --planner graph");
  }
  SearchControl control(problem.options, "join");
  control.report(-1);
  return JoinSearch(problem, control).answer();
}

}  // namespace reprise::internal::join
