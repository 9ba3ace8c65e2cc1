#include "plan/chain_search.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "plan/chain_bound.h"
#include "plan/chain_merge.h"
#include "plan/chain_surroundings.h"

namespace reprise::internal {
namespace {

// Fewer stages are solved faster than bounded.
constexpr size_t kBoundStages = 24;

// The first grid: so many steps for the average forward, and at least so many for the best plan.
constexpr int64_t kStepsOfForward = 8, kSteps = 64;
constexpr int64_t kFiner = 16;  // from pass to pass

// Merged chains: from at least so many blocks on, twice as many each time, to such a gap.
constexpr size_t kFirstBlocks = 32;
constexpr double kBlockGap = 0.005;

// Of the time that is left, for the smallest peak of the best time.
constexpr double kPeakShare = 0.2;

double share_of(int64_t part, int64_t whole) {
  return static_cast<double>(part) / static_cast<double>(std::max<int64_t>(1, whole));
}

// Sweeps of a plan: stretches of fast forwards. Rounding loses less than a step of the grid for each.
int64_t count_sweeps(const ChainModel& model, const std::vector<Run>& runs) {
  int64_t sweeps = 0;
  bool sweeping = false;
  for (const Run& run : runs) {
    const bool fast = static_cast<size_t>(run.op) < model.stages && run.variant == 0;
    sweeps += fast && !sweeping;
    sweeping = fast;
  }
  return sweeps;
}

// Fine enough that the average forward costs some steps, and that rounding does not lose more than
// what lies between the bounds.
int64_t first_grid(const ChainModel& model, const Bracket& bracket) {
  const auto stages = static_cast<int64_t>(model.stages);
  const int64_t forward = model.least_sweeps.back() / stages;
  const int64_t sweeps = 1 + count_sweeps(model, bracket.best->runs);
  const int64_t slack = bracket.best->cost - bracket.lower;
  return std::max<int64_t>(1, std::min({forward / kStepsOfForward, bracket.best->cost / kSteps,
                                        slack / sweeps}));
}

}  // namespace

Trace greedy(const SearchSpace& space, const std::vector<int64_t>& floors, int64_t memory) {
  const auto feasible = [&](size_t slot, int64_t m) { return m >= floors[slot] ? 0 : kInfeasible; };
  return trace(space.model, space.cells, feasible, memory);
}

Trace traced(const SearchSpace& space, const CurveTable& table, int64_t memory) {
  const auto cost = [&](size_t slot, int64_t m) { return cost_at(table.curve(slot), m); };
  return trace(space.model, space.cells, cost, memory, table.limits().grid);
}

void improve_by_blocks(const ChainModel& model, Dropping dropping, int64_t memory, double gain,
                       int threads, Bracket& bracket, SearchControl& control) {
  size_t length = 1;
  while (model.stages / (2 * length) >= kFirstBlocks) length *= 2;
  for (; length > 1 && !control.out_of_time(); length /= 2) {
    const MergedChain merged = merge_stages(model, model.stages / length);
    const ChainCells cells(merged.model, /*share=*/true, dropping);
    if (!cells.complete()) return;
    const SearchSpace space{merged.model, cells, threads};
    const std::vector<int64_t> floors = smallest_memory(merged.model, cells, threads, control);
    if (floors.empty()) return;
    if (floors[space.root()] > memory) continue;
    Bracket blocks{.best = greedy(space, floors, memory)};
    if (bracket.best && bracket.best->cost <= blocks.best->cost) {
      blocks.best = Trace{{}, bracket.best->cost};
    }
    narrow(space, memory, {.gap = kBlockGap}, blocks, control);
    const bool found = !blocks.best->runs.empty();
    const bool much = found && (!bracket.best || share_of(bracket.best->cost - blocks.best->cost,
                                                          bracket.best->cost) >= gain);
    if (found) bracket.best = split_blocks(model, merged, *blocks.best);
    if (!much) return;
  }
}

void narrow(const SearchSpace& space, int64_t memory, const Precision& precision, Bracket& bracket,
            SearchControl& control) {
  const LossBound bound(space.model, space.cells.dropping(), memory);
  bracket.lower = std::max(bracket.lower, std::min(bound.lower(), bracket.best->cost));
  const bool bounded = precision.passes != Passes::kExactOnly;
  const bool coarse_first =
      bounded && (precision.passes == Passes::kAlways || space.model.stages >= kBoundStages);
  int64_t grid = coarse_first ? first_grid(space.model, bracket) : 1;
  std::unique_ptr<Surroundings> around;
  while (!control.out_of_time()) {
    const int64_t gap = bracket.best->cost - bracket.lower;
    if (precision.gap > 0 && share_of(gap, bracket.best->cost) <= precision.gap) return;
    // With the best cost proven only its smallest peak is left to find: not worth all the time.
    SearchControl pass = gap == 0 ? control.part(kPeakShare) : control;
    if (gap == 0) grid = 1;
    CurveLimits limits{.memory = memory,
                       .cost = bracket.best->cost,
                       .grid = grid,
                       .bound = bounded ? &bound : nullptr,
                       .around = around.get(),
                       .threads = space.threads};
    const CurveTable table(space.model, space.cells, limits, pass);
    bracket.memory = std::max(bracket.memory, table.memory());
    if (!table.complete()) return;
    const Steps root = table.curve(space.root());
    // Empty: no plan of this space is as good, the best one is of another.
    const int64_t least = root.empty() ? bracket.best->cost : root.back().cost;
    bracket.lower = std::max(bracket.lower, std::min(least, bracket.best->cost));
    if (!root.empty()) {
      Trace plan = traced(space, table, root.back().memory);
      if (plan.cost <= bracket.best->cost) bracket.best = std::move(plan);
    }
    if (grid == 1) {
      bracket.exact = true;
      return;
    }
    auto next = std::make_unique<Surroundings>(space.model, space.cells, table,
                                               bracket.best->cost, control);
    bracket.memory = std::max(bracket.memory, table.memory() + next->memory());
    if (!next->complete()) return;
    around = std::move(next);
    grid = std::max<int64_t>(1, grid / kFiner);
  }
}

}  // namespace reprise::internal
