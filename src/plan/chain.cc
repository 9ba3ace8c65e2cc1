// clang-format off
// The exact optimum of a chain over all persistent schedules.
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
// | C(i,l,m,p)   | CurveTable::curve(slot)          | least time to run B_l..B_i (l = L: also the |
// |              |                                  | loss) in m bytes; x_i live and outside m,   |
// |              |                                  | g_{l+1} is live and inside m                |
//
// Loss   C(L,L,m,p) = loss time, if g_L + workspace <= m
//          (a loss that gives back x_L, p = 0: if g_L + workspace - x_L <= m)
// Keep   f + b + C(i+1, l, m - s - x_{i+1} + u, ro) for every option o, if
//          g_{l+1} + x_{i+1} + s + of <= m                                          (forward) and
//          g_{i+1} + s + [ro] x_{i+1} + W(i+1,l) + g_i + w_i + ob - u <= m           (backward)
//          (a backward that gives back what it reads: W(i+1,l) + g_i + w_i + ob - u <= m)
// Check- S(i,j) + C(j, l, m - x_j, 0) + C(i, j-1, m - W(j,l), p) for i < j <= l, if
// point    g_{l+1} + x_{i+1} + off_i <= m, and g_{l+1} + x_k + x_{k+1} + off_k <= m for i < k < j
//
// g_{L+1} = w_L = 0. The answer for a budget M is C(0, L, M - fixed - x_0, 1). A backward that
// gives things back starts from a level that an earlier op of the segment left behind and hence
// passed: it needs no test. A sweep may run any forward variant; where "fast" is both the quickest
// and the smallest, as usual, S(i,j) is one number. Every C is a step function of m
// (step_function.h): keeping shifts one, a checkpoint adds two, the best of all is their lower
// envelope. Ties in time go to fewer re-runs (ChainModel), then to the smaller peak: the answer is
// read at the first step of its cost.
//
// The smallest feasible budget comes first, from the same recurrence over {feasible, infeasible}:
// one number a cell. It also gives a greedy plan, and tables of trimmed curves a good one: steps of
// the exact curves that cost more than that plan are of no use.
//
// Complexity: O(L^3) sums of step functions, each linear in its steps; how many steps there are
// depends on how many different sums the sizes and times have. Smallest budget: O(L^3) time, O(L^2)
// memory. Equal cells are stored once (chain_cells.h).
//
// Assumes: every forward may run again. Does not handle: schedules that drop a value which a kept
// stage needs and recompute it.
//
// Tests:
//   oracle/chain_oracle_test.cc: equal to the best persistent schedule at every budget; never below
//     the best of all schedules; sharing, memory cap and cost bound change nothing
//   oracle/published_counterexamples_test.cc: where the published tests go wrong
//   property/chain_planner_test.cc: ties, long chains; seeds change nothing
//   property/planner_property_test.cc: monotone, scaling, frontier equal to single solves
// clang-format on
#include <algorithm>
#include <cstdint>
#include <vector>

#include "plan/candidates.h"
#include "plan/chain_cells.h"
#include "plan/chain_model.h"
#include "plan/chain_table.h"
#include "plan/chain_trace.h"
#include "plan/planners.h"
#include "plan/search_control.h"
#include "reprise/model/errors.h"

namespace reprise::internal {
namespace {

// Trimmed tables leave out what saves less than the smallest possible time over this; shorter
// chains are solved faster than trimmed.
constexpr int64_t kTrimParts = 1000;
constexpr size_t kSeedStages = 16;

// The model, its cells and the smallest memory of each: what every question begins with.
struct Solver {
  explicit Solver(const Chain& chain)
      : model(make_model(chain)),
        cells(model, /*share=*/true),
        floors(smallest_memory(model, cells)) {}

  int64_t outside() const { return model.fixed + model.x[0]; }  // bytes that are not counted in m
  int64_t floor() const { return floors[root()]; }
  size_t root() const { return cells.slot(0, model.stages, true); }

  // A feasible plan that keeps whatever it can, first things first.
  Trace greedy(int64_t memory) const {
    return trace(
        model,
        [this](size_t first, size_t last, bool pinned, int64_t m) {
          return m >= floors[cells.slot(first, last, pinned)] ? 0 : kInfeasible;
        },
        memory);
  }

  // The plan behind the table's value at so much memory.
  Trace traced(const CurveTable& table, int64_t memory) const {
    return trace(
        model,
        [&](size_t first, size_t last, bool pinned, int64_t m) {
          return cost_at(table.curve(cells.slot(first, last, pinned)), m);
        },
        memory);
  }

  // A good plan at a small part of the cost of the best one: the same tables, trimmed.
  Trace seed(int64_t memory, SearchControl& control) const {
    Trace plan = greedy(memory);
    const int64_t trim = model.least_time / kTrimParts * model.time_weight;
    if (model.stages < kSeedStages || trim == 0) return plan;
    const CurveTable table(model, cells, {memory, plan.cost, trim}, control);
    if (!table.complete() || table.curve(root()).empty()) return plan;
    Trace better = traced(table, table.curve(root()).back().memory);
    return better.cost < plan.cost ? better : plan;
  }

  ChainModel model;
  ChainCells cells;
  std::vector<int64_t> floors;
};

PlanOptions with_time_limit(const PlanOptions& options, int64_t limit) {
  PlanOptions changed = options;
  changed.time_limit = Nanos(limit);
  return changed;
}

// A tenth of the time is set aside for the plans of simpler planners, should the tables not be
// finished.
constexpr int64_t kReserve = 10;

void consider_simpler(const ChainProblem& problem, const Trace& seed, Candidates& candidates) {
  const int64_t limit = problem.options.time_limit.count();
  const PlanOptions options = with_time_limit(problem.options, limit / kReserve);
  SearchControl control(options, "chain");
  candidates.consider(seed.runs);
  candidates.consider(plain_runs(problem.graph));
  consider_revolve(problem.chain, candidates, control);
  consider_periodic(problem.chain, candidates, control);
}

Answer infeasible(const ChainProblem& problem, const Solver& solver) {
  Answer answer;
  answer.termination = Termination::kInfeasible;
  answer.smallest_budget = Bytes(solver.floor() + solver.outside());
  answer.blocking_op = peak_op(problem.graph, solver.greedy(solver.floor()).runs);
  return answer;
}

}  // namespace

Answer exact_chain(const ChainProblem& problem) {
  const int64_t limit = problem.options.time_limit.count();
  const PlanOptions options = with_time_limit(problem.options, limit - limit / kReserve);
  SearchControl control(options, "chain");
  const Solver solver(problem.chain);
  const int64_t memory = (problem.budget - Bytes(solver.outside())).count();
  if (memory < solver.floor()) return infeasible(problem, solver);

  const Trace seed = solver.seed(memory, control);
  const CurveTable table(solver.model, solver.cells, {memory, seed.cost}, control);
  if (!table.complete()) {
    Candidates candidates(problem.graph, problem.budget);
    consider_simpler(problem, seed, candidates);
    Answer answer = candidates.answer(Nanos(solver.model.least_time), false);
    answer.search_memory = table.memory();
    return answer;
  }
  const Steps curve = table.curve(solver.root());
  if (curve.empty()) throw InternalError("the tables lost a plan that is known");
  const Step best = curve.back();
  Answer answer;
  answer.termination = Termination::kOptimal;
  answer.runs = solver.traced(table, best.memory).runs;
  answer.lower_bound = Nanos(solver.model.time_of(best.cost));
  answer.search_memory = table.memory();
  return answer;
}

// The whole curve, or, when time runs out, that of the simpler planners with the bound that holds
// for every plan.
std::vector<FrontierPoint> exact_frontier(const ChainProblem& problem) {
  const int64_t limit = problem.options.time_limit.count();
  const PlanOptions options = with_time_limit(problem.options, limit - limit / kReserve);
  SearchControl control(options, "chain");
  const Solver solver(problem.chain);
  const CurveTable table(solver.model, solver.cells, {}, control);
  if (!table.complete()) {
    Candidates candidates(problem.graph, problem.budget);
    consider_simpler(problem, solver.greedy(solver.floor()), candidates);
    return candidates.curve(Nanos(solver.model.least_time));
  }
  std::vector<FrontierPoint> points;
  for (const Step& step : table.curve(solver.root())) {
    const Nanos time(solver.model.time_of(step.cost));
    // The same time with fewer re-runs and more memory is no point of the curve.
    if (!points.empty() && points.back().time == time) continue;
    const Bytes budget(step.memory + solver.outside());
    points.push_back({budget, budget, time, time});
  }
  return points;
}

}  // namespace reprise::internal
