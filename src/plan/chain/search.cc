#include "plan/chain/search.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <vector>

#include "plan/chain/bound.h"
#include "plan/chain/merge.h"
#include "plan/chain/surroundings.h"

namespace reprise::internal::chain {

using common::SearchControl;

namespace {

// Chains with fewer stages are solved faster than bounded.
constexpr size_t kBoundStages = 24;

// The first grid has kStepsOfForward steps for the average forward, and at least kSteps for the
// best plan.
constexpr int64_t kStepsOfForward = 8, kSteps = 64;
constexpr int64_t kFiner = 16;  // each pass is this much finer than the one before

// If only this many cells a stage are left, the next grid is the exact one.
constexpr size_t kFewForStage = 4;

// The surroundings of the cells may take kPatience times as long as the table, and kLeastPatience
// more. After that they are given up for this grid. On the next grid they may take kMorePatience
// times longer.
constexpr int kPatience = 2, kMorePatience = 4;
constexpr std::chrono::milliseconds kLeastPatience{20};

// The optimum is usually nearer to the bound than to the best known plan. The search first looks
// for plans up to 1/kFirstGuess of the distance between the two, and then goes up by the factor
// kNextGuess.
constexpr int64_t kFirstGuess = 16, kNextGuess = 2;

// Merged chains begin with at least kFirstBlocks blocks. Each further chain has twice as many, and
// each is solved to the gap kBlockGap.
constexpr size_t kFirstBlocks = 32;
constexpr double kBlockGap = 0.005;

// If there is no plan yet, the first plan of a chain of up to kUrgentBlocks blocks may take as long
// as it needs (some 10 ms), and a better plan may take kUrgentTime.
constexpr size_t kUrgentBlocks = 256;
constexpr std::chrono::milliseconds kUrgentTime{50};

// The share of the remaining time for the smallest peak of the best time.
constexpr double kPeakShare = 0.2;

double share_of(int64_t part, int64_t whole) {
  return static_cast<double>(part) / static_cast<double>(std::max<int64_t>(1, whole));
}

// Counts the sweeps of a plan, which are stretches of fast forwards. Rounding loses less than a
// step of the grid for each sweep.
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

// Returns a grid so fine that the average forward costs some steps, and that rounding loses no more
// than the distance between the bounds.
int64_t first_grid(const ChainModel& model, const Trace& best, int64_t slack) {
  const auto stages = static_cast<int64_t>(model.stages);
  const int64_t forward = model.least_sweeps.back() / stages;
  const int64_t sweeps = 1 + count_sweeps(model, best.runs);
  return std::max<int64_t>(
      1, std::min({forward / kStepsOfForward, best.cost / kSteps, slack / sweeps}));
}

// Returns false if shorter blocks are not worth trying.
bool improve_by_blocks_of(size_t length, const ChainModel& model, Schedules schedules,
                          int64_t memory, double gain, int threads, Bracket& bracket,
                          SearchControl control) {
  // A first plan of merged stages is worth more than being on time. Without it, all known plans are
  // many times slower.
  const bool urgent = !bracket.best && model.stages / length <= kUrgentBlocks;
  if (!urgent && control.out_of_time()) return false;

  const MergedChain merged = merge_stages(model, model.stages / length);
  const ChainCells cells(merged.model, /*share=*/true, schedules);
  if (!cells.complete()) return false;
  const SearchSpace space{merged.model, cells, threads};
  SearchControl first = urgent ? control.untimed() : control;
  const std::vector<int64_t> floors = smallest_memory(merged.model, cells, threads, first);
  if (floors.empty()) return false;
  if (floors[space.root()] > memory) return true;
  Bracket blocks{.best = greedy(space, floors, memory)};
  if (bracket.best && bracket.best->cost <= blocks.best->cost) {
    blocks.best = Trace{{}, bracket.best->cost};
  }
  if (urgent) control = control.at_least(kUrgentTime);
  narrow(space, memory, {.gap = kBlockGap}, blocks, control);
  const bool found = !blocks.best->runs.empty();
  const bool much = found && (!bracket.best || share_of(bracket.best->cost - blocks.best->cost,
                                                        bracket.best->cost) >= gain);
  if (found) bracket.best = split_blocks(model, merged, *blocks.best);
  return much;
}

// Narrowing goes through the passes from coarse to fine, for plans up to a given cost.
class Narrowing {
 public:
  Narrowing(const SearchSpace& space, int64_t memory, const Precision& precision, Bracket& bracket,
            SearchControl& control)
      : space_(space),
        memory_(memory),
        precision_(precision),
        bracket_(bracket),
        control_(control),
        bound_(space.model, space.cells.schedules(), memory),
        bounded_(precision.coarse_passes != CoarsePasses::kExactOnly),
        coarse_first_(precision.coarse_passes == CoarsePasses::kAlways ||
                      (bounded_ && space.model.stages >= kBoundStages)) {}

  void run() {
    bracket_.lower = std::max(bracket_.lower, std::min(bound_.lower(), bracket_.best->cost));
    if (control_.out_of_time() || close_enough()) return;
    if (bounded_ && space_.cells.shared()) bound_.tabulate(space_.cells);
    int64_t more = coarse_first_ ? slack() / kFirstGuess : slack();
    while (!bracket_.exact && !control_.out_of_time()) {
      if (close_enough()) return;
      // Once the best time is proven, only the smallest peak is left to find.
      if (bracket_.proven(space_.model) || !coarse_first_) more = slack();
      if (!try_up_to(bracket_.lower + std::min(more, slack()))) return;
      more = more * kNextGuess + 1;
    }
  }

 private:
  int64_t slack() const { return bracket_.best->cost - bracket_.lower; }

  bool close_enough() const {
    return precision_.gap > 0 && share_of(slack(), bracket_.best->cost) <= precision_.gap;
  }

  bool few(size_t cells) const { return cells <= kFewForStage * space_.model.stages; }

  int64_t grid_for(int64_t limit) const {
    const bool coarse = coarse_first_ && !bracket_.proven(space_.model);
    return coarse ? first_grid(space_.model, *bracket_.best, limit - bracket_.lower) : 1;
  }

  // Finds the best plan that costs no more than the limit, or proves that there is none. Returns
  // false if time is over, or if everything that was asked for is known.
  bool try_up_to(int64_t limit) {
    std::unique_ptr<Surroundings> around;
    const int64_t coarsest = grid_for(limit);
    int patient = kPatience;
    for (int64_t grid = coarsest;;) {
      const bool proven = bracket_.proven(space_.model);
      // The smallest peak is not worth all the time.
      SearchControl pass = proven ? control_.part(kPeakShare) : control_;
      const auto start = std::chrono::steady_clock::now();
      const CurveTable table(space_.model, space_.cells, limits(limit, grid, around.get()), pass);
      take_memory(table.memory());
      if (!table.complete()) return false;
      if (!take_root(table, limit)) return true;
      if (grid == 1) {
        bracket_.exact = true;
        return false;
      }
      if (close_enough()) return false;
      limit = std::min(limit, bracket_.best->cost);
      const bool first = grid == coarsest;
      grid = bracket_.proven(space_.model) ? 1 : std::max<int64_t>(1, grid / kFiner);
      if (first && few(table.cells())) continue;
      // The surroundings may take much longer than the table, and a better plan makes them shorter.
      const auto taken = std::chrono::steady_clock::now() - start;
      SearchControl patience = control_.at_most(taken * patient + kLeastPatience);
      auto next =
          std::make_unique<Surroundings>(space_.model, space_.cells, table, limit, patience);
      take_memory(table.memory() + next->memory());
      if (!next->complete()) {
        if (control_.out_of_time() || next->too_large()) return false;
        patient *= kMorePatience;
        continue;
      }
      around = std::move(next);
      if (few(around->needed_cells())) grid = 1;
    }
  }

  // Reads the root of a table. Returns false if no plan costs so little.
  bool take_root(const CurveTable& table, int64_t limit) {
    const CurveView root = table.curve(space_.root());
    if (root.empty()) {
      // The best known plan belongs to another space, or costs more than the limit.
      bracket_.exact = limit >= bracket_.best->cost;
      bracket_.lower = std::min(limit + 1, bracket_.best->cost);
      return false;
    }
    bracket_.lower = std::max(bracket_.lower, std::min(root.back().cost, bracket_.best->cost));
    Trace plan = traced(space_, table, root.back().memory);
    if (plan.cost <= bracket_.best->cost) bracket_.best = std::move(plan);
    return true;
  }

  CurveLimits limits(int64_t cost, int64_t grid, const Surroundings* around) const {
    return {.memory = memory_,
            .cost = cost,
            .grid = grid,
            .bound = bounded_ ? &bound_ : nullptr,
            .around = around,
            .threads = space_.threads};
  }

  void take_memory(Bytes tables) { bracket_.memory = std::max(bracket_.memory, tables); }

  const SearchSpace& space_;
  int64_t memory_;
  const Precision& precision_;
  Bracket& bracket_;
  SearchControl& control_;
  LossBound bound_;
  bool bounded_, coarse_first_;
};

}  // namespace

Trace greedy(const SearchSpace& space, const std::vector<int64_t>& floors, int64_t memory) {
  const auto feasible = [&](size_t slot, int64_t m) { return m >= floors[slot] ? 0 : kInfeasible; };
  return trace(space.model, space.cells, feasible, memory);
}

Trace traced(const SearchSpace& space, const CurveTable& table, int64_t memory) {
  const auto cost = [&](size_t slot, int64_t m) { return cost_at(table.curve(slot), m); };
  return trace(space.model, space.cells, cost, memory, table.limits().grid);
}

void improve_by_blocks(const ChainModel& model, Schedules schedules, int64_t memory, double gain,
                       int threads, Bracket& bracket, SearchControl& control) {
  size_t length = 1;
  while (model.stages / (2 * length) >= kFirstBlocks) length *= 2;
  for (; length > 1; length /= 2) {
    if (!improve_by_blocks_of(length, model, schedules, memory, gain, threads, bracket, control)) {
      return;
    }
  }
}

void narrow(const SearchSpace& space, int64_t memory, const Precision& precision, Bracket& bracket,
            SearchControl& control) {
  Narrowing(space, memory, precision, bracket, control).run();
}

}  // namespace reprise::internal::chain
