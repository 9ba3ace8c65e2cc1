// clang-format off
// Persistent schedules of a chain over slots of memory: a good plan and a proven bound in a time
// that does not depend on the sizes.
//
// The founding paper (O. Beaumont, L. Eyraud-Dubois, J. Herrmann, A. Joly, A. Shilova, "Optimal
// checkpointing for heterogeneous chains: how to train deep neural networks with limited memory",
// arXiv 1911.13214) divides the memory into slots and rounds every size up. Here the recurrence of
// chain.cc is solved twice: with what a branch takes from the memory rounded up (every value can be
// reached: a plan) and rounded down (no persistent schedule is below: a bound). Sizes are not
// rounded one by one: see slot_grid.h.
//
// | paper         | identifier             | meaning                                            |
// |---------------|------------------------|----------------------------------------------------|
// | C(i, l, m)    | SlotTable::cost()      | bound on the least time to run B_l..B_i in m bytes |
// | slot          | SlotGrid::unit()       | bytes between two points of a cell                 |
// | m = 0..M      | 0..SlotGrid::last()    | points, the same number for every cell             |
// | F_ck, F_none  | sweep_to()             | checkpoint x_j                                     |
// | F_all         | keep()                 | keep stage i with an option                        |
//
// The plan is traced from the upper table with the exact bytes left at every node: the tables only
// rank the branches, so that nothing is lost twice, and every plan fits. Where the table has no
// value (memory too short for its slots) but the segment is feasible, any feasible branch is taken.
//
// A plan of the chain merged into blocks (chain_blocks.h) comes first: it bounds the costs of
// interest, which are then scaled to 32 bits, and is the answer should time run out.
//
// Complexity: O(L^3 slots) additions, 8 or 16 of them at a time, O(L^2 slots) memory; fewer by the
// number of equal cells. No decision table: O(L) values a node while tracing.
//
// Tests: oracle/chain_slots_test.cc (bound <= exact optimum <= plan; threads change nothing; exact
// where the slots divide everything), and every planner's in property/planner_property_test.cc.
// clang-format on
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <thread>
#include <vector>

#include "plan/candidates.h"
#include "plan/chain_blocks.h"
#include "plan/chain_cells.h"
#include "plan/chain_model.h"
#include "plan/chain_table.h"
#include "plan/chain_trace.h"
#include "plan/planners.h"
#include "plan/search_control.h"
#include "plan/slot_table.h"
#include "reprise/check/simulate.h"

namespace reprise::internal {
namespace {

// Sharing equal cells must save this many of them: cells of their own lose less to rounding.
constexpr size_t kWorthSharing = 2;

ChainCells choose_cells(const ChainModel& model, bool& shared) {
  ChainCells cells(model, /*share=*/true);
  const size_t all = (model.stages + 1) * (model.stages + 2) / 2;
  shared = cells.order().size() * kWorthSharing <= all;
  return shared ? cells : ChainCells(model, /*share=*/false);
}

// The m from which the root costs nothing extra: every stage kept with its fastest options. More
// memory is of no use.
int64_t enough_memory(const ChainModel& model) {
  const size_t stages = model.stages, last = stages;
  std::vector<int64_t> need{model.loss[0], model.loss[1]};  // of the stages from i on, by pinned
  for (size_t i = stages; i-- > 0;) {
    std::vector<int64_t> here{kInfeasible, kInfeasible};
    for (const bool pinned : {false, true}) {
      for (const KeepOption& option : model.options[i]) {
        if (option.cost != 0) continue;
        const int64_t given_back = model.given_back(i, option, pinned);
        here[pinned] = std::min(
            here[pinned],
            std::max({model.g[last + 1] + option.forward,
                      model.weights(i + 1, last) + option.backward - given_back,
                      need[option.reads_output] + option.saved + model.x[i + 1] - given_back}));
      }
    }
    need = here;
  }
  return need[true];
}

// The model, its cells, the smallest memory of each, and the best that is known so far.
struct SlotSolver {
  SlotSolver(const Chain& chain, Bytes budget, size_t with_threads)
      : model(make_model(chain)),
        cells(choose_cells(model, shared)),
        floors(smallest_memory(model, cells)),
        memory((budget - Bytes(outside())).count()),
        threads(with_threads) {
    if (memory < floor()) return;
    memory = std::min(memory, enough_memory(model));
    plan = greedy(memory);
  }

  int64_t outside() const { return model.fixed + model.x[0]; }  // bytes that are not counted in m
  int64_t floor() const { return floors[cells.slot(0, model.stages, true)]; }
  bool feasible(size_t first, size_t last, bool pinned, int64_t m) const {
    return m >= floors[cells.slot(first, last, pinned)];
  }

  // A feasible plan that keeps whatever it can, first things first.
  Trace greedy(int64_t within) const {
    return trace(
        model,
        [this](size_t first, size_t last, bool pinned, int64_t m) {
          return feasible(first, last, pinned, m) ? 0 : kInfeasible;
        },
        within);
  }
  Trace traced(const SlotTable& table) const;

  Nanos gap() const { return Nanos(model.time_of(plan.cost) - model.time_of(bound)); }

  // How many slots are worth their time, and fit.
  int64_t slots(int64_t time_limit) const;
  // Improve the bound and the plan by what a table of so many slots knows, unless time runs out.
  void raise_bound(int64_t slots, SearchControl& control);
  void improve_plan(int64_t slots, SearchControl& control);
  SlotTable table(int64_t slots, Rounding rounding, SearchControl& control);

  bool shared = true;
  ChainModel model;
  ChainCells cells;
  std::vector<int64_t> floors;
  int64_t memory;  // bytes beyond fixed and x_0 that a plan may use
  size_t threads;

  Trace plan;               // the best one known
  bool greedy_only = true;  // no better one has been looked for
  int64_t bound = 0;        // on the cost of every persistent plan
  int64_t table_bytes = 0;  // of the largest table so far
};

// Tables never take more than this.
constexpr int64_t kTableLimit = int64_t{2} << 30;
// Additions a second that are reckoned with, half of the time for either table; finding two rows to
// add takes as long as so many additions.
constexpr double kRate = 2e9, kLookUp = 48;
// So many slots are wanted, and more where that is little work.
constexpr double kEnough = 500, kLittleWork = 4e9;
constexpr double kFewest = 64, kMost = 8192;

// Depends on the problem and the time limit, never on the machine: equal questions have equal
// answers.
int64_t SlotSolver::slots(int64_t time_limit) const {
  double additions = 0;  // a slot, of one table
  for (const Cell& cell : cells.order()) additions += cell.last - cell.first + 1;
  const double wanted = std::max(kEnough, kLittleWork / additions);
  const double in_time = kRate / 2 * static_cast<double>(time_limit) / 1e9 / additions - kLookUp;
  const double fit = static_cast<double>(kTableLimit) /
                     static_cast<double>(cells.order().size() * sizeof(int32_t));
  return static_cast<int64_t>(std::min(fit, std::clamp(std::min(wanted, in_time), kFewest, kMost)));
}

SlotTable SlotSolver::table(int64_t slots, Rounding rounding, SearchControl& control) {
  return {model, cells, floors, {memory, slots, plan.cost, shared, threads}, rounding, control};
}

Trace SlotSolver::traced(const SlotTable& table) const {
  return trace(
      model,
      [&](size_t first, size_t last, bool pinned, int64_t m) {
        const int64_t cost = table.cost(first, last, pinned, m);
        if (cost != kInfeasible || !feasible(first, last, pinned, m)) return cost;
        return plan.cost + 1;  // feasible, but not on the table's grid: the last choice
      },
      memory);
}

void SlotSolver::raise_bound(int64_t slots, SearchControl& control) {
  const SlotTable lower = table(slots, Rounding::kDown, control);
  table_bytes = std::max(table_bytes, lower.memory().count());
  if (!lower.complete()) return;
  if (lower.exact()) {
    plan = traced(lower);
    greedy_only = false;
  }
  bound = std::min(lower.cost(0, model.stages, true, memory), plan.cost);
}

void SlotSolver::improve_plan(int64_t slots, SearchControl& control) {
  const SlotTable upper = table(slots, Rounding::kUp, control);
  table_bytes = std::max(table_bytes, upper.memory().count());
  if (!upper.complete()) return;
  Trace found = traced(upper);
  if (found.cost < plan.cost) plan = std::move(found);
  greedy_only = false;
}

// Considers a plan of the chain merged into blocks, from a table that takes a small part of the
// time that those of the whole chain take. Blocks count some bytes twice: now and then nothing
// fits.
void consider_blocks(const ChainProblem& problem, size_t threads, SearchControl& control,
                     Candidates& candidates) {
  constexpr size_t kFewestStages = 32, kStagesABlock = 4;
  constexpr int64_t kSlots = 1000;
  constexpr double kShare = 0.1;  // of the time
  const size_t stages = problem.chain.stages.size();
  if (stages < kFewestStages) return;
  const double additions =
      kRate * kShare * static_cast<double>(problem.options.time_limit.count()) / 1e9;
  const auto in_time = static_cast<size_t>(std::cbrt(6 * additions / kSlots));
  const std::vector<size_t> borders =
      block_borders(problem.chain, std::clamp<size_t>(in_time, 1, stages / kStagesABlock));
  const Chain merged = merge_blocks(problem.chain, borders);
  SlotSolver blocks(merged, problem.budget, threads);
  if (blocks.memory < blocks.floor()) return;
  blocks.improve_plan(kSlots, control);
  if (blocks.greedy_only) return;
  candidates.consider(expand_blocks(problem.chain, borders, blocks.plan.runs));
}

void seed_from_blocks(const ChainProblem& problem, SlotSolver& solver, SearchControl& control) {
  Candidates candidates(problem.graph, problem.budget);
  consider_blocks(problem, solver.threads, control, candidates);
  if (!candidates.fits()) return;
  const ChainModel& model = solver.model;
  Trace found{candidates.answer(Nanos(), false).runs, 0};
  const Nanos time = simulate(problem.graph, with_frees(problem.graph, found.runs)).time;
  const auto reruns = static_cast<int64_t>(found.runs.size() - 2 * model.stages - 1);
  found.cost = (time.count() - model.least_time) * model.time_weight + reruns * model.rerun_weight;
  if (found.cost < solver.plan.cost) solver.plan = std::move(found);
  solver.greedy_only = false;
}

// Whether the smallest budget alone would take too long: then blocks must do, and a budget that is
// not met remains an open question.
bool too_long(const Chain& chain, int64_t time_limit) {
  constexpr double kNanosAStep = 15, kAlways = 1e9;
  const ChainModel model = make_model(chain);
  bool shared = false;
  const ChainCells cells = choose_cells(model, shared);
  double steps = 0;
  for (const Cell& cell : cells.order()) steps += cell.last - cell.first + 1;
  return steps * kNanosAStep > std::max(kAlways, static_cast<double>(time_limit) / 2);
}

Answer infeasible(const ChainProblem& problem, const SlotSolver& solver) {
  Answer answer;
  answer.termination = Termination::kInfeasible;
  answer.smallest_budget = Bytes(solver.floor() + solver.outside());
  answer.blocking_op = peak_op(problem.graph, solver.greedy(solver.floor()).runs);
  return answer;
}

// A tenth of the time is set aside for the plans of simpler planners, should none be found here.
constexpr int64_t kReserve = 10;

// The best of these candidates and of the simpler planners.
Answer best_simple(const ChainProblem& problem, Candidates& candidates) {
  PlanOptions options = problem.options;
  options.time_limit = Nanos(options.time_limit.count() / kReserve);
  SearchControl control(options, "chain_slots");
  candidates.consider(plain_runs(problem.graph));
  consider_revolve(problem.chain, candidates, control);
  consider_periodic(problem.chain, candidates, control);
  return candidates.answer(least_time(problem.chain), false);
}

}  // namespace

Answer slots_chain(const ChainProblem& problem) {
  PlanOptions options = problem.options;
  const int64_t limit = options.time_limit.count();
  options.time_limit = Nanos(limit - limit / kReserve);
  SearchControl control(options, "chain_slots");
  control.report(0);
  const size_t threads = options.threads > 0 ? static_cast<size_t>(options.threads)
                                             : std::max(1U, std::thread::hardware_concurrency());
  Candidates candidates(problem.graph, problem.budget);
  if (too_long(problem.chain, limit)) {
    consider_blocks(problem, threads, control, candidates);
    return best_simple(problem, candidates);
  }
  SlotSolver solver(problem.chain, problem.budget, threads);
  if (solver.memory < solver.floor()) return infeasible(problem, solver);

  seed_from_blocks(problem, solver, control);
  const int64_t slots = solver.slots(limit);
  solver.raise_bound(slots, control);
  if (solver.gap() > Nanos()) solver.improve_plan(slots, control);

  Answer answer;
  if (!solver.greedy_only) {
    answer.lower_bound = Nanos(solver.model.time_of(solver.bound));
    answer.termination = solver.gap() == Nanos() ? Termination::kOptimal : Termination::kFeasible;
    answer.runs = std::move(solver.plan.runs);
  } else {
    candidates.consider(std::move(solver.plan.runs));
    answer = best_simple(problem, candidates);
  }
  answer.search_memory = Bytes(solver.table_bytes);
  return answer;
}

}  // namespace reprise::internal
