// This planner cuts a chain into groups of equal numbers of stages, and four integers say what happens
// to the groups: they are kept, run again, or move. So do managers of memory for transformers:
// H. Yang, J. Zhou, Y. Fu, X. Wang, R. Roane, H. Guan, T. Liu, "ProTrain: Efficient LLM training via
// automatic memory management", MLSys 2026, arXiv 2406.08334.
//
// Paper                             here
// a block: a layer of the model     a group: some stages, whose number is the first integer
// n_swap, n_checkpoint: how many    two more integers: how many groups move, and how many run again
//   blocks move, and run again      behind these
// blocks that move stand between    groups that move stand together; the fourth integer is how many
//   blocks that run again           groups run again before them
// the other blocks are kept         the same: they are the last, and their backward comes first
// n_persist, n_buffer: chunks of    none: parameters are fixed bytes of a chain, which no plan moves
//   parameters, and their buffers
// cost models                       the exact plan of each combination (flow.h)
// all combinations                  the same, without those that cannot win
//
// A combination cannot win if what its kept groups save does not fit at the loss, or if its runs alone
// take as long as the best plan so far. Both tests are exact.
//
// It is here to be compared with: `levels` decides for each value alone.
//
// Complexity: O(groups^3) combinations for each size of a group. Large groups are looked at first, and
// of a size the combinations with the fewest runs. If a size has more than kMostCombinations, no group
// runs again before those that move.
//
// Assumes: every forward may run again. Not proven: nothing in its class; the bound is that of
// `levels`.
//
// Tests: those of every planner; property/levels_test.cc (never faster than the bound or than `levels`;
// as good as every combination, each built by hand).
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "plan/baselines/baselines.h"
#include "plan/common/search_control.h"
#include "plan/literature/planner.h"
#include "plan/place/lanes.h"
#include "plan/place/levels/choices.h"
#include "plan/place/levels/judge.h"
#include "plan/place/levels/segments.h"

namespace reprise::internal::literature {

using levels::Choices;
using levels::Judge;
using levels::kSwept;

namespace {

constexpr size_t kMostInAGroup = 64;           // stages
constexpr size_t kMostCombinations = 100'000;  // of groups of one size
constexpr double kBuildShare = 0.9;            // of the time limit, after which nothing is built

// The groups stand in this order: `before` run again, `moved` move, `behind` run again, and the others
// are kept.
struct Integers {
  size_t stages = 1;  // of a group
  size_t before = 0, moved = 0, behind = 0;
};

Choices fates_of(const Integers& four, size_t stages) {
  Choices choices(stages);
  const size_t first_moved = four.before * four.stages;
  const size_t first_after = first_moved + four.moved * four.stages;
  const size_t first_kept = std::min(stages, first_after + four.behind * four.stages);
  for (size_t k = 0; k < first_kept; ++k) {
    if (k >= first_moved && k < first_after) {
      choices[k].saved_lane = 0;
      choices[k].input_lane = 0;
    } else {
      choices[k].option = kSwept;
      if (k % four.stages == 0) choices[k].cut = 1;
    }
  }
  return choices;
}

class Groups {
 public:
  explicit Groups(const ChainProblem& problem)
      : stages_(problem.chain.stages.size()),
        longest_(std::min(levels::longest_segment(stages_), kMostInAGroup)),
        loss_time_(problem.chain.loss.cost.time.count()),
        judge_(problem, longest_, "block4"),
        control_(judge_.control().part(kBuildShare)) {
    for (const Stage& stage : problem.chain.stages) {
      const StageOption& option = stage.options[0];
      const Nanos time = option.forward.time + option.backward.time;
      kept_time_.push_back(kept_time_.back() + time.count());
      saved_.push_back(saved_.back() + option.saved.count());
    }
  }

  Answer run() {
    judge_.offer(Choices(stages_));  // says what a refusal needs, if nothing fits
    for (size_t size = longest_; size > 0; --size) search(size);
    return judge_.answer();
  }

 private:
  struct Combination {
    Integers four;
    int64_t time = 0;  // of its runs, at least
  };

  // Sums over the groups before a group, in as many bytes as there are.
  struct Again {
    int64_t longer = 0;      // by how much their runs take longer if they run again
    int64_t impossible = 0;  // how many of them do not fit if they run again
  };
  std::vector<Again> run_again(size_t size) const {
    std::vector<Again> sums{{}};
    for (size_t first = 0; first < stages_; first += size) {
      const size_t end = std::min(first + size, stages_);
      const chain::CurveView curve = judge_.segments().curve(first, end - 1);
      Again next = sums.back();
      if (curve.empty()) {
        ++next.impossible;
      } else {
        const int64_t again = judge_.segments().sweep_time(first, end) +
                              judge_.segments().time_of(first, end - 1, curve.back().cost);
        next.longer += again - (kept_time_[end] - kept_time_[first]);
      }
      sums.push_back(next);
    }
    return sums;
  }

  std::vector<Combination> combinations(size_t size) const {
    const size_t groups = (stages_ + size - 1) / size;
    const std::vector<Again> again = run_again(size);
    const auto possible = [&](size_t from, size_t to) {
      return again[from].impossible == again[to].impossible;
    };
    const bool all = (groups + 1) * (groups + 2) / 2 * (groups + 3) / 3 <= kMostCombinations;
    std::vector<Combination> found;
    for (size_t before = 0; before <= (all ? groups : 0) && possible(0, before); ++before) {
      // Without a group that moves, all that run again stand behind.
      for (size_t moved = before == 0 ? 0 : 1; before + moved <= groups; ++moved) {
        const size_t from = before + moved;
        for (size_t to = from; to <= groups && possible(from, to); ++to) {
          if (saved_.back() - saved_[std::min(to * size, stages_)] > judge_.memory()) continue;
          const int64_t longer = again[before].longer + again[to].longer - again[from].longer;
          found.push_back(
              {{size, before, moved, to - from}, loss_time_ + kept_time_.back() + longer});
        }
      }
    }
    std::stable_sort(found.begin(), found.end(),
                     [](const Combination& a, const Combination& b) { return a.time < b.time; });
    return found;
  }

  void search(size_t size) {
    for (const Combination& one : combinations(size)) {
      const std::optional<int64_t> best = judge_.best_time();
      if ((best && one.time >= *best) || control_.out_of_time()) return;
      judge_.offer(fates_of(one.four, stages_));
    }
  }

  const size_t stages_;
  const size_t longest_;  // stages of a group
  const int64_t loss_time_;
  Judge judge_;
  const common::SearchControl control_;
  std::vector<int64_t> kept_time_{0};  // [k] = forwards and backwards of the stages before k, kept
  std::vector<int64_t> saved_{0};      // [k] = what the stages before k save
};

}  // namespace

Answer block4_chain(const ChainProblem& problem) {
  // Where nothing can move, groups are kept or run again.
  if (place::lanes_of(problem.options.machine).empty()) return baselines::periodic_chain(problem);
  return Groups(problem).run();
}

}  // namespace reprise::internal::literature
