// This planner finds the exact optimum of a chain over all persistent schedules, and over schedules
// that may also drop the input of a kept stage and compute it again. It also finds the optimum of the
// schedules that keep inputs of stages alone: the heterogeneous AC model of that paper's section on
// related work.
//
// The founding paper: O. Beaumont, L. Eyraud-Dubois, J. Herrmann, A. Joly, A. Shilova, "Optimal
// checkpointing for heterogeneous chains: how to train deep neural networks with limited memory",
// arXiv 1911.13214. Its recurrence is solved here with feasibility tests that follow the memory of
// the schedule op by op, and generalised: several options a stage, backwards that do not read their
// stage's input or output, gradients apart from activations, weight gradients, operations that give
// back what they read, sweeps with any forward variant. Nothing is rounded to slots.
//
// | symbol       | identifier                       | meaning                                     |
// |--------------|----------------------------------|---------------------------------------------|
// | L            | ChainModel::stages               | stages; index L stands for the loss         |
// | x_k, g_k     | x, g                             | activation, gradient of boundary k          |
// | W(a,l)       | weights(a, l)                    | weight gradients of stages a..l             |
// | s, ri, ro    | saved, reads_input, reads_output | of an option o of stage i                   |
// | f, of, b, ob | cost, forward, backward          | its times (summed), its workspaces (tests)  |
// | S(i,j)       | Sweep                            | F_i..F_{j-1}, nothing kept                  |
// | p            | pinned                           | x_i must outlive the segment                |
// | u            | given_back()                     | x_i, if p = 0 and not ri; else 0            |
// | C(i,l,m,p)   | Cell, option < 0                 | least time to run B_l..B_i (l = L: also the |
// |              |                                  | loss) in m bytes; x_i live and outside m,   |
// |              |                                  | g_{l+1} is live and inside m                |
// | P            | package()                        | g_{l+1} + s + [ro] x_{l+1}                  |
// | D(i,l,o,m,p) | Cell, option o                   | the same, but F_l ran with option o, and    |
// |              |                                  | P is live and inside m in place of g_{l+1}  |
//
// Loss   C(L,L,m,p) = loss time, if g_L + workspace <= m
//          (a loss that gives back x_L, p = 0: if g_L + workspace - x_L <= m)
// Keep   f + b + C(i+1, l, m - s - x_{i+1} + u, ro) for every option o, if
//          g_{l+1} + x_{i+1} + s + of <= m                                          (forward) and
//          g_{i+1} + s + [ro] x_{i+1} + W(i+1,l) + g_i + w_i + ob - u <= m           (backward)
//          (a backward that gives back what it reads: W(i+1,l) + g_i + w_i + ob - u <= m;
//          a run that gives back x_i: x_i less, there and in D)
//          If i = l < L, the stage ran before, and its run may stop early: f and of are those of
//          that run, and its test has no x_{i+1}.
// Check- S(i,j) + C(j, l, m - x_j, 0) + C(i, j-1, m - W(j,l), p) for i < j <= l, if
// point    g_{l+1} + x_{i+1} + off_i <= m, and g_{l+1} + x_k + x_{k+1} + off_k <= m for i < k < j
// Drop   S(i,k) + f + b + C(k+1, l, m - s - x_{k+1}, ro) + D(i, k, o, m - W(k+1,l), p)
//          for i < k < l and every option o of stage k with ri, if the tests of the sweep to x_k
//          hold and g_{l+1} + x_k + x_{k+1} + s + of <= m
// D      as C, with P for g_{l+1} in the tests of forwards and sweeps and D for the part that ends
//          with l; D(l,l,o,m,p) = 0 (its time is counted with the drop), if its backward fits
//
// g_{L+1} = w_L = 0. The answer for a budget M is C(0, L, M - fixed - x_0, 1). A backward that
// gives values back starts from a level that an earlier op of the segment left behind, and that
// level passed its test then. So the start needs no test. A sweep may run any forward variant. If
// "fast" is both the quickest and the smallest, as usual, S(i,j) is one number. Every C is a step
// function of m (chain/cost_curve.h): keeping shifts one, a checkpoint adds two, and the best of
// all is their lower envelope. Ties in time go to fewer re-runs (ChainModel), then to the smaller
// peak, because the answer is read at the first step of its cost. The recurrence is written down
// once, in chain/branches.h.
//
// For one budget, chain/search.h computes only the cells and steps that a plan as good as the best
// known one can have. If time runs out, the answer is the best plan and the bound found so far.
//
// Complexity of a whole curve: O(L^3) sums of step functions, each linear in its steps. The number
// of steps depends on the number of different sums of the sizes and times. Smallest budget: O(L^3)
// time, O(L^2) memory. Equal cells are stored once (chain/cells.h).
//
// Assumes: every forward may run again. Does not handle: other schedules that drop a value which a
// kept stage needs and recompute it.
//
// Tests:
//   oracle/chain_oracle_test.cc: equal to the best persistent schedule at every budget; never below
//     the best of all schedules, and how often equal to it; bounds below every plan; sharing, the
//     memory cap, the cost bound, coarse passes and threads change nothing
//   oracle/published_counterexamples_test.cc: where the published tests go wrong
//   property/chain_planner_test.cc: ties, long chains; merged chains; plans under a time limit
//   property/planner_property_test.cc: monotone, scaling, frontier equal to single solves
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "plan/chain/classes.h"
#include "plan/chain/model.h"
#include "plan/chain/planner.h"
#include "plan/common/by_level.h"
#include "plan/common/search_control.h"

namespace reprise::internal::chain {

using common::SearchControl;
using common::thread_count;

namespace {

// The share of the time for persistent schedules if only the larger class was asked for.
constexpr double kFirstClass = 0.4;

// Returns the answer of the larger class if that class has a better plan or a proof that there is
// none. Otherwise it returns the answer of the smaller class, whose bound is the better one.
const ClassResult& more_telling(const ChainModel& model, const ClassResult& small,
                                const ClassResult& large) {
  if (!large.bracket.best) return small.bracket.best ? small : large;
  if (large.bracket.exact || large.bracket.proven(model) || !small.bracket.best) return large;
  if (large.bracket.best->cost < small.bracket.best->cost) return large;
  return small;
}

// Searches the larger class after the persistent schedules, and uses their result. The persistent
// schedules come first and take as long as they need, so no time limit makes the answer worse than
// theirs. Quick plans of the larger class are searched from scratch, and not from the persistent
// plan: a coarse level may hide an improvement of that plan which a finer level shows.
ClassResult either_class(const ChainModel& model, int64_t memory, int threads,
                         SearchControl& control) {
  const ClassResult small =
      search_class(model, Schedules::kPersistent, memory, {}, threads, control);
  if (small.bracket.best && control.out_of_time()) return small;
  const ChainCells cells(model, /*share=*/true, Schedules::kDroppedInputs);
  ClassResult large = quick_plan(model, cells, memory, {}, threads, control);
  const std::optional<Trace>& persistent = small.bracket.best;
  std::optional<Trace>& best = large.bracket.best;
  if (persistent && (!best || persistent->cost < best->cost)) best = persistent;
  finish_search({model, cells, threads}, memory, large, control);
  return more_telling(model, small, large);
}

ClassResult larger_class(const ChainModel& model, int64_t memory, int threads,
                         SearchControl& control) {
  SearchControl first = control.part(kFirstClass);
  const ClassResult small =
      search_class(model, Schedules::kPersistent, memory, {}, threads, first);
  return search_class(model, Schedules::kDroppedInputs, memory, small.bracket.best, threads,
                      control);
}

}  // namespace

Answer exact_chain(const ChainProblem& problem) {
  const std::string& wanted = problem.options.schedule_class;
  const std::vector<Schedules> classes = wanted_classes(wanted);
  SearchControl control = SearchControl(problem.options, "chain").part(1 - kReserve);
  const ChainModel model = make_model(problem.chain, Stops::kEarly);
  const int64_t memory = problem.budget.count() - bytes_around(model);
  const int threads = thread_count(problem.options.threads);
  ClassResult best;
  if (classes.size() == 1) {
    best = search_class(model, classes.front(), memory, {}, threads, control);
  } else {
    const auto search = wanted.empty() ? either_class : larger_class;
    best = search(model, memory, threads, control);
  }
  const bool has_answer = best.bracket.best || best.infeasible();
  // The simplest plans keep stages.
  if (!has_answer && best.schedules != Schedules::kInputsOnly) return simplest_plan(problem, "chain");
  return to_answer(problem, model, best);
}

}  // namespace reprise::internal::chain
