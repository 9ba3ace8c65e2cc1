// Binomial checkpointing: A. Griewank, A. Walther, "Algorithm 799: revolve", ACM TOMS 26(1), 2000.
// The schedules are optimal if all stages are equal, only stage inputs are stored and each state
// takes one of s slots. Here the schedules for s = 1..L are applied to the chain as it is. A
// simulation with the true sizes and times decides which of them are within the budget, and which
// of these is the fastest.
//
// | paper        | here                                                               |
// |--------------|--------------------------------------------------------------------|
// | l steps      | stages of a segment                                                |
// | c, snapshots | slots; the input of a segment takes one of them                    |
// | beta(c, r)   | binomial(slots + r, slots): stages that r re-runs each can reverse |
// | t(l, c)      | fast runs of the schedule; revolve_split() keeps it least          |
//
// To reverse stage i is to run F_i with its first option, then (once, at the end) the loss, then
// B_i.
//
// There are two families. Both have the same splits:
// - class `inputs-only`: a slot holds the input of the first stage of its segment;
// - class `histories`: it holds all that the backward of this stage needs, and the stage's output,
//   from which later sweeps start. So the stage runs once in this segment. This is rotor's
//   compute_homogeneous_sequence(useXbar = True): O. Beaumont et al., arXiv 1911.13214.
// Without a class, the best schedule of both is the answer. All of them are persistent.
//
// Complexity: O(runs) a schedule. For s = 1 that is L^2 / 2, and beyond a few slots O(L log L).
//
// Tests: property/simple_planners_test.cc (against the dynamic program for t), and the tests of
// every planner in property/planner_property_test.cc.
#include "plan/baselines/revolve.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "plan/baselines/baselines.h"
#include "plan/common/candidates.h"
#include "plan/common/search_control.h"
#include "reprise/model/errors.h"
#include "reprise/model/lower.h"

namespace reprise::internal::baselines {

using common::Candidates;
using common::least_time;
using common::SearchControl;

namespace {

constexpr const char* kPersistentClass = "persistent";
constexpr std::pair<Held, const char*> kFamilies[] = {{Held::kInputs, "inputs-only"},
                                                      {Held::kHistories, "histories"}};

// Returns min(binomial(slots + repeats, slots), limit), or 0 if repeats < 0.
int64_t reach(int64_t slots, int64_t repeats, int64_t limit) {
  if (repeats < 0) return 0;
  int64_t value = 1;
  for (int64_t k = 1; k <= std::min(slots, repeats); ++k) {
    value = value * (std::max(slots, repeats) + k) / k;  // a binomial itself: no rounding
    if (value >= limit) return limit;
  }
  return value;
}

}  // namespace

size_t revolve_split(size_t stages, size_t slots) {
  const auto n = static_cast<int64_t>(stages), s = static_cast<int64_t>(slots);
  int64_t repeats = 0;
  while (reach(s, repeats, n) < n) ++repeats;
  // It holds that beta(s, r-1) < n <= beta(s, r). The left part is optimal between beta(s, r-2) and
  // beta(s, r-1) stages if the right one then has between beta(s-1, r-1) and beta(s-1, r).
  const int64_t left = std::max(reach(s, repeats - 2, n), n - reach(s - 1, repeats, n));
  return static_cast<size_t>(std::clamp<int64_t>(left, 1, n - 1));
}

std::vector<Run> revolve_runs(size_t stages, size_t slots, Held held) {
  struct Segment {
    size_t first, end, slots;
    bool kept = false;  // whether the first stage ran with what its backward needs
  };
  const ChainIndex index{stages};
  std::vector<Run> runs;
  std::vector<Segment> stack{{0, stages, slots}};
  while (!stack.empty()) {
    const Segment s = stack.back();
    stack.pop_back();
    const size_t length = s.end - s.first;
    if (length == 1) {
      if (!s.kept) runs.push_back({index.forward(s.first), 1});
      if (s.end == stages) runs.push_back({index.loss(), 0});
      runs.push_back({index.backward(s.first), 0});
      continue;
    }
    // With one slot left, only the segment's input is stored, so the last stage is reversed alone.
    const size_t split = s.slots == 1 ? s.end - 1 : s.first + revolve_split(length, s.slots);
    const bool keeps = held == Held::kHistories;
    if (!s.kept) runs.push_back({index.forward(s.first), keeps ? 1 : 0});
    for (size_t i = s.first + 1; i < split; ++i) runs.push_back({index.forward(i), 0});
    stack.push_back({s.first, split, s.slots, keeps});
    stack.push_back({split, s.end, s.slots == 1 ? 1 : s.slots - 1});
  }
  return runs;
}

namespace {

// Returns false if time ran out before every candidate was considered.
bool consider_family(const Chain& chain, Held held, Candidates& candidates,
                     SearchControl& control) {
  // The loop goes from many slots to one, because schedules with few slots take longest to write
  // down.
  for (size_t slots = chain.stages.size(); slots > 0; --slots) {
    if (control.out_of_time()) return false;
    control.report(-1);
    candidates.consider(revolve_runs(chain.stages.size(), slots, held));
  }
  return true;
}

bool consider_families(const ChainProblem& problem, Candidates& candidates,
                       SearchControl& control) {
  const std::string& wanted = problem.options.schedule_class;
  bool known = wanted.empty() || wanted == kPersistentClass;
  bool all = true;
  for (const auto& [held, name] : kFamilies) {
    if (!wanted.empty() && wanted != kPersistentClass && wanted != name) continue;
    known = true;
    all = consider_family(problem.chain, held, candidates, control) && all;
  }
  if (!known) {
    throw InputError("planner 'revolve' has no schedule class '" + wanted +
                     "'; it has 'inputs-only', 'histories', and both of them as 'persistent'");
  }
  return all;
}

}  // namespace

bool consider_revolve(const Chain& chain, Candidates& candidates, SearchControl& control) {
  return consider_family(chain, Held::kInputs, candidates, control);
}

Answer revolve_chain(const ChainProblem& problem) {
  SearchControl control(problem.options, "revolve");
  Candidates candidates(problem.graph, problem.budget);
  const bool all = consider_families(problem, candidates, control);
  return candidates.answer(least_time(problem.chain), all);
}

Curve revolve_frontier(const ChainProblem& problem) {
  SearchControl control(problem.options, "revolve");
  Candidates candidates(problem.graph, problem.budget);
  consider_families(problem, candidates, control);
  return {candidates.curve(least_time(problem.chain))};
}

}  // namespace reprise::internal::baselines
