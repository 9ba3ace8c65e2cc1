// This planner finds persistent schedules of a chain over slots of memory: a good plan and a proven
// bound in a time that does not depend on the sizes.
//
// The founding paper (O. Beaumont, L. Eyraud-Dubois, J. Herrmann, A. Joly, A. Shilova, "Optimal
// checkpointing for heterogeneous chains: how to train deep neural networks with limited memory",
// arXiv 1911.13214) divides the memory into slots and rounds every size up. Here the recurrence of
// chain.cc is solved twice. Once the bytes that a branch takes from the memory are rounded up:
// every value can be reached, so it is the time of a plan. Once they are rounded down: no
// persistent schedule is faster, so the value is a bound. Sizes are not rounded one by one: see
// chain_slots/grid.h.
//
// | paper         | identifier             | meaning                                            |
// |---------------|------------------------|----------------------------------------------------|
// | C(i, l, m)    | SlotTable::cost()      | bound on the least time to run B_l..B_i in m bytes |
// | slot          | SlotGrid::unit()       | bytes between two points of a cell                 |
// | m = 0..M      | 0..SlotGrid::last()    | points, the same number for every cell             |
// | F_ck, F_none  | sweep_to()             | checkpoint x_j                                     |
// | F_all         | keep()                 | keep stage i with an option                        |
//
// The plan is traced from the upper table with the exact bytes left at every node. The tables only
// rank the branches, so rounding is not counted twice, and every plan fits.
//
// A plan of the chain merged into blocks comes first (quick_plan() of chain/classes.h). It bounds
// the costs of interest, which are then scaled to 32 bits, and it is the answer if time runs out.
//
// Complexity: O(L^3 slots) additions, 8 or 16 of them at a time, and O(L^2 slots) memory. Equal
// cells reduce both. There is no decision table: tracing reads O(L) values a node.
//
// Tests: oracle/chain_slots_test.cc (bound <= exact optimum <= plan; threads change nothing; exact
// where the slots divide everything), and the tests of every planner in
// property/planner_property_test.cc.
#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "plan/chain/cells.h"
#include "plan/chain/classes.h"
#include "plan/chain/model.h"
#include "plan/chain/trace.h"
#include "plan/chain_slots/planner.h"
#include "plan/chain_slots/table.h"
#include "plan/common/by_level.h"
#include "plan/common/search_control.h"

namespace reprise::internal::chain_slots {

using chain::Bracket;
using chain::bytes_around;
using chain::Cell;
using chain::ChainCells;
using chain::ChainModel;
using chain::ClassResult;
using chain::KeepOption;
using chain::kInfeasible;
using chain::kReserve;
using chain::make_model;
using chain::quick_plan;
using chain::simplest_plan;
using chain::to_answer;
using chain::Trace;
using chain::trace;
using common::SearchControl;
using common::thread_count;

namespace {

// Equal cells are shared only if that divides their number by at least this. Cells of their own
// lose less to rounding.
constexpr size_t kWorthSharing = 2;

// Each table takes at most this many bytes.
constexpr int64_t kTableLimit = int64_t{2} << 30;
// The planner expects kRate additions a second, and gives each table half of the time. Finding two
// rows to add takes as long as kLookUp additions.
constexpr double kRate = 2e9, kLookUp = 48;
// The planner wants kEnough slots, and more if kLittleWork additions allow them.
constexpr double kEnough = 500, kLittleWork = 4e9;
constexpr double kFewest = 64, kMost = 8192;

ChainCells choose_cells(const ChainModel& model, bool& shared) {
  ChainCells cells(model, /*share=*/true);
  const size_t all = (model.stages + 1) * (model.stages + 2) / 2;
  shared = !cells.complete() || cells.order().size() * kWorthSharing <= all;
  return shared ? cells : ChainCells(model, /*share=*/false);
}

// Returns the m from which the root costs nothing extra: every stage is kept with its fastest
// options. More memory has no use.
int64_t enough_memory(const ChainModel& model) {
  const size_t stages = model.stages, last = stages;
  std::vector<int64_t> need{model.loss[0], model.loss[1]};  // for the stages from i on, by pinned
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

// The number depends on the problem, the wanted number and the time limit, and never on the
// machine. So equal questions have equal answers.
int64_t choose_slots(const ChainCells& cells, int64_t asked, int64_t time_limit) {
  double additions = 0;  // for one slot of one table
  for (const Cell& cell : cells.order()) additions += cell.last - cell.first + 1;
  const double wanted = std::max(kEnough, kLittleWork / additions);
  const double in_time = kRate / 2 * static_cast<double>(time_limit) / 1e9 / additions - kLookUp;
  const double fit = static_cast<double>(kTableLimit) /
                     static_cast<double>(cells.order().size() * sizeof(int32_t));
  if (asked > 0) return static_cast<int64_t>(std::min(fit, static_cast<double>(asked)));
  return static_cast<int64_t>(std::min(fit, std::clamp(std::min(wanted, in_time), kFewest, kMost)));
}

// Takes the table's plan if it is better than the best known one. The table must have a value for
// the root.
void take_plan(const ChainModel& model, const ChainCells& cells, const SlotTable& table,
               int64_t memory, Bracket& bracket) {
  std::vector<Cell> by_slot(cells.slots());
  for (const Cell& cell : cells.order()) by_slot[cell.slot] = cell;
  const auto cost = [&](size_t slot, int64_t m) { return table.cost(by_slot[slot], m); };
  Trace plan = trace(model, cells, cost, memory);
  if (plan.cost < bracket.best->cost) bracket.best = std::move(plan);
}

// Raises the bound and improves the plan of the bracket with tables of the given number of slots.
void solve_tables(const ChainModel& model, const ChainCells& cells, const SlotLimits& limits,
                  Bracket& bracket, SearchControl& control) {
  const Cell root = cells.order().back();
  const auto table = [&](Rounding rounding) {
    SlotLimits now = limits;
    now.largest_cost = bracket.best->cost;
    return SlotTable(model, cells, now, rounding, control);
  };
  const auto gap = [&] { return model.time_of(bracket.best->cost) - model.time_of(bracket.lower); };
  if (gap() == 0) return;
  {
    const SlotTable lower = table(Rounding::kDown);
    bracket.memory = std::max(bracket.memory, lower.memory());
    if (!lower.complete()) return;
    // If the root has no value, no plan is cheaper than the best known one.
    const int64_t cost = lower.cost(root, limits.memory);
    if (lower.exact() && cost != kInfeasible) {
      take_plan(model, cells, lower, limits.memory, bracket);
    }
    bracket.lower = std::max(bracket.lower, std::min(cost, bracket.best->cost));
  }
  if (gap() == 0) return;
  const SlotTable upper = table(Rounding::kUp);
  bracket.memory = std::max(bracket.memory, upper.memory());
  if (!upper.complete() || upper.cost(root, limits.memory) == kInfeasible) return;
  take_plan(model, cells, upper, limits.memory, bracket);
}

}  // namespace

Answer slots_chain(const ChainProblem& problem) {
  SearchControl control = SearchControl(problem.options, "chain_slots").part(1 - kReserve);
  control.report(0);
  const ChainModel model = make_model(problem.chain);
  const int64_t memory =
      std::min(problem.budget.count() - bytes_around(model), enough_memory(model));
  const int threads = thread_count(problem.options.threads);
  bool shared = true;
  const ChainCells cells = choose_cells(model, shared);
  ClassResult outcome = quick_plan(model, cells, memory, {}, threads, control);
  if (!outcome.bracket.best && !outcome.infeasible()) return simplest_plan(problem, "chain_slots");
  if (outcome.bracket.best && cells.complete()) {
    const SlotLimits limits{
        .memory = memory,
        .slots = choose_slots(cells, problem.options.slots, problem.options.time_limit.count()),
        .shared = shared,
        .threads = threads};
    solve_tables(model, cells, limits, outcome.bracket, control);
  }
  return to_answer(problem, model, outcome);
}

}  // namespace reprise::internal::chain_slots
