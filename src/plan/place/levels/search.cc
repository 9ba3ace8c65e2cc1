#include "plan/place/levels/search.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include "plan/chain/planner.h"
#include "plan/common/candidates.h"
#include "plan/common/search_control.h"
#include "plan/place/levels/choices.h"
#include "plan/place/levels/improve.h"
#include "plan/place/levels/judge.h"
#include "reprise/check/simulate.h"

namespace reprise::internal::levels {

namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kWindow = 24;                  // the most stages of a segment
constexpr double kChainShare = 0.2;             // of the time, for the best plan without copies
constexpr double kFirstLooks = 0.4;             // of the search, for all starts together
constexpr double kMovingAlone = 0.1;            // of the search, for plans that make nothing again
constexpr size_t kMixedParts = 12;              // of a chain, in starts of both
constexpr size_t kMostMixed = 4;                // of these starts are looked at
constexpr size_t kFinalists = 3;                // starts that the rest of the search goes on with
constexpr double kReserve = 0.1;                // of the time, for all that has no clock
constexpr int64_t kRunsEvaluated = 26'000'000;  // over all flows of a search
constexpr int64_t kLeastEvaluations = 2'000, kMostEvaluations = 200'000;
constexpr int64_t kEvaluationsForStage = 7'000;  // at most

// Returns the best plan without copies, whose class also has plans that choices cannot say.
Answer without_copies(const ChainProblem& problem) {
  ChainProblem alone = problem;
  alone.options.machine = {};
  alone.options.time_limit = common::part_of(problem.options.time_limit, kChainShare);
  return chain::exact_chain(alone);
}

// Lets everything move that can.
Choices all_move(Choices choices) {
  std::fill(choices.saved_lane.begin(), choices.saved_lane.end(), 0);
  std::fill(choices.input_lane.begin(), choices.input_lane.end(), 0);
  return choices;
}

class Search {
 public:
  Search(const ChainProblem& problem, Fates fates)
      : problem_(problem),
        fates_(fates),
        deadline_(Clock::now() +
                  std::chrono::nanoseconds(
                      common::part_of(problem.options.time_limit, 1 - kReserve).count())),
        judge_(problem, std::min(kWindow, problem.chain.stages.size()),
               fates == Fates::kAll ? "levels" : "offload_only"),
        bench_(judge_.bench()),
        index_{problem.chain.stages.size()} {
    bench_.sweeps = fates == Fates::kAll;
  }

  Answer run() {
    const Answer alone = fates_ == Fates::kAll ? without_copies(problem_) : Answer{};
    collect(alone);
    search();
    return answer(alone);
  }

 private:
  static bool faster(const Candidate& a, const Candidate& b) { return a.cost.time < b.cost.time; }

  void offer(Choices choices) {
    std::optional<Candidate> start = judge_.look_at(std::move(choices));
    if (start) starts_.push_back(*std::move(start));
  }

  // Looks at every start for a while, and then goes on with several, because every fourth or so
  // ends at a plan that is longer by half a percent.
  void search() {
    if (starts_.empty()) return;
    const auto runs = static_cast<int64_t>(starts_.front().schedule.runs.positions.size());
    const int64_t evaluations = std::min(
        std::clamp(kRunsEvaluated / runs, kLeastEvaluations, kMostEvaluations),
        std::max(kLeastEvaluations, kEvaluationsForStage * static_cast<int64_t>(index_.stages)));
    uint64_t seed = 0;
    const auto part = [&](double share) {
      return Effort{static_cast<int64_t>(share * static_cast<double>(evaluations)),
                    std::chrono::duration_cast<std::chrono::nanoseconds>(share * time_left_),
                    seed++};
    };
    time_left_ = deadline_ - Clock::now();
    const int64_t floor = judge_.bound().count();
    if (fates_ == Fates::kAll) {  // Moving alone is soon at its end, and sometimes the best.
      Workbench moving = bench_;
      moving.sweeps = false;
      judge_.consider(improve(moving, starts_.front(), floor, part(kMovingAlone)));
    }
    const double each = kFirstLooks / static_cast<double>(starts_.size());
    for (Candidate& start : starts_) {
      start = improve(bench_, std::move(start), floor, part(each));
    }
    std::sort(starts_.begin(), starts_.end(), faster);
    const size_t finalists = std::min(kFinalists, starts_.size());
    for (size_t s = 0; s < finalists; ++s) {
      const double share = (1 - kMovingAlone - kFirstLooks) / static_cast<double>(finalists);
      judge_.consider(improve(bench_, std::move(starts_[s]), floor, part(share)));
    }
  }

  void collect(const Answer& alone) {
    const Choices kept = keep_everything(index_.stages);
    offer(judge_.carrier().lanes().empty() ? kept : all_move(kept));
    if (alone.found()) {
      const Choices choices = choices_of(problem_.graph, index_, alone.runs);
      offer(choices);
      offer(all_move(choices));
    }
    if (!starts_.empty() || fates_ != Fates::kAll || judge_.carrier().lanes().empty()) return;
    collect_mixed();
    std::sort(starts_.begin(), starts_.end(), faster);
    starts_.resize(std::min(starts_.size(), kMostMixed));
  }

  // Neither moving alone nor recomputing alone fits, but some of both may: the stages between two
  // boundaries run again in groups and the others are kept and may move, or the reverse.
  void collect_mixed() {
    const size_t stages = index_.stages, step = std::max<size_t>(1, stages / kMixedParts);
    for (size_t group = 1; group <= judge_.segments().window(); group *= 2) {
      for (size_t begin = 0; begin < stages; begin += step) {
        for (size_t end = begin + step; end < stages + step; end += step) {
          for (const bool inside : {true, false}) {
            offer(mixed(begin, std::min(end, stages), inside, group));
            if (Clock::now() > deadline_) return;
          }
        }
      }
    }
  }

  Choices mixed(size_t begin, size_t end, bool inside, size_t group) const {
    Choices choices = all_move(keep_everything(index_.stages));
    for (size_t k = 0; k < index_.stages; ++k) {
      if ((k >= begin && k < end) != inside) continue;
      choices.option[k] = kSwept;
      choices.cut[k] = k % group == 0 ? 1 : 0;
    }
    return choices;
  }

  // The answer is the faster one of the search's and of the best plan without copies.
  Answer answer(const Answer& alone) {
    Answer moved = judge_.answer();
    moved.search_memory = alone.search_memory;
    if (fates_ == Fates::kKeepOrMove) return moved;
    if (alone.found()) {
      const Nanos time = common::time_of(problem_.graph, alone.runs);
      if (moved.found() && Nanos(*judge_.best_time()) < time) return moved;
      moved.actions.clear();
      moved.runs = alone.runs;
      moved.set_found(time);
      return moved;
    }
    if (moved.found()) return moved;
    moved.termination = alone.termination;
    if (!moved.smallest_budget ||
        (alone.smallest_budget && *alone.smallest_budget <= *moved.smallest_budget)) {
      moved.smallest_budget = alone.smallest_budget;
      moved.blocking_op = alone.blocking_op;
    }
    return moved;
  }

  const ChainProblem& problem_;
  Fates fates_;
  Clock::time_point deadline_;
  Clock::duration time_left_{};
  Judge judge_;
  Workbench bench_;
  ChainIndex index_;
  std::vector<Candidate> starts_;
};

}  // namespace

Answer search_fates(const ChainProblem& problem, Fates fates) {
  return Search(problem, fates).run();
}

}  // namespace reprise::internal::levels
