// This planner lets checkpoints float: an activation that is stored for later re-runs may be given
// up for another one, before all stages behind it have run backward.
//
// The founding paper's program offers such schedules as "floating": O. Beaumont, L. Eyraud-Dubois,
// J. Herrmann, A. Joly, A. Shilova, "Optimal checkpointing for heterogeneous chains: how to train
// deep neural networks with limited memory", arXiv 1911.13214; rotor, compute_sequence(floating =
// True). Persistent schedules are not always the best, which is why the program has them.
//
// The symbols are those of chain.cc. R(s,t,l,m,p) is C(s,l,m,p) without the backwards of the stages
// before t: from x_s, which is live and outside m, it runs B_l..B_t (l = L: also the loss), and it
// ends with g_t. R(s,s,l,m,p) replaces C, and x_s floats where s < t, which implies p = 0.
//
// | symbol         | identifier        | meaning                                                |
// |----------------|-------------------|--------------------------------------------------------|
// | R(s,t,l,m,p)   | Piece, option < 0 | least time from x_s to g_t                             |
// | R with P       | Piece, option o   | the same, but F_l ran with option o (D of chain.cc)    |
// | G(s,t,l,m)     | onward()          | least time to run from x_s, which stays, to g_t        |
// | s, t, l        | first, goal, last |                                                        |
//
// Loss, Keep   for s = t, as in chain.cc, with R for C
// G(s,t,l,m) = the least S(s,k) + R(k, t, l, m - x_k, 0) for s < k <= t, if the sweep from x_s to
//                x_k fits into m
// Checkpoint   G(s,t',l,m) + R(s, t, t'-1, m - W(t',l), p) for t < t' <= l
// Move         S(s,k) + R(k, t, l, m - x_k + x_s, 0) for s < k <= t: x_s is freed as soon as F_s
//                has run, so the sweep has x_s more behind F_s
// Drop         as in chain.cc, for a stage k with t <= k < l and s < k: R(s, t, k, ..) for D
//
// With t' = k and s = t these are the branches of chain.cc. So the class contains its schedules,
// and no answer is worse than that of the planner `chain`, which comes first. rotor's choice
// (s',r,t') is the move from s to r and then G(r,t',l) over s'. As G is found once for all t, a
// curve takes O(L^4) sums of step functions, where rotor's table takes O(L^6) additions for each
// slot. rotor moves only to activations that are as large or larger, and tests each choice with a
// sweep over the whole segment. Here every test is exact.
//
// The bound at the loss (chain/bound.h) holds for this class. Its proof uses one property of
// persistent schedules: what a kept stage reads stays with it. Around a piece, the bound holds
// without the sweeps from x_s to x_t, which the piece itself may do (docs/planners/floating.md).
//
// Complexity: O(L^4) sums of step functions for a curve, O(L^3) of them in memory. For one budget,
// the pieces and steps that no plan faster than the best known one has are left out. Costs are
// rounded down to ever finer grids, as in chain/search.h.
//
// Long chains: with more than kMostPieces pieces, t - s has a limit, so that the number of pieces
// fits. The answer is then a plan of the class, and its lower bound is the one at the loss.
//
// Does not handle: giving up an activation at another moment than the start of a run from it;
// dropping the output of a kept stage.
//
// Tests: oracle/floating_test.cc: equal to the best of all floating schedules of small chains at
// every budget; never below the best of all schedules; never above `chain`, with and without a
// limit on t - s. property/planner_property_test.cc has the tests of every planner.
#include "plan/chain/floating.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "plan/chain/bound.h"
#include "plan/chain/branches.h"
#include "plan/chain/classes.h"
#include "plan/chain/cost_curve.h"
#include "plan/chain/model.h"
#include "plan/chain/planner.h"
#include "plan/common/by_level.h"
#include "plan/common/search_control.h"
#include "reprise/model/errors.h"
#include "reprise/model/lower.h"

namespace reprise::internal::chain {

using common::for_each_by_level;
using common::SearchControl;
using common::thread_count;

namespace {

constexpr const char* kFloating = "floating";
constexpr const char* kFloatingDropped = "floating+dropped-inputs";

// The tables of one pass have at most so many pieces and bytes.
constexpr size_t kMostPieces = 16'000'000;
constexpr int64_t kMostBytes = int64_t{1} << 30;

// The share of the time for the schedules that `chain` knows.
constexpr double kChainShare = 0.5;

// Chains of up to so many stages are solved in one pass. The first grid of longer ones has at least
// kPassSteps steps for the best plan, and each further grid is kPassFiner times finer.
constexpr size_t kOnePass = 24;
constexpr int64_t kPassSteps = 256, kPassFiner = 16;

// On this grid, every cost is 0: curves have one step, at the smallest memory.
constexpr int64_t kNoCosts = kInfeasible;

struct Piece {
  size_t first = 0, goal = 0, last = 0;
  bool pinned = false;
  int option = -1;
};

struct PieceBranch {
  enum Kind { kLoss, kReverse, kKeep, kCheckpoint, kDrop, kMove } kind = kLoss;
  int64_t from = 0;
  int64_t cost = 0;
  std::optional<Piece> right = {};
  int64_t right_shift = 0;
  std::optional<Piece> left = {};
  int64_t left_shift = 0;
  size_t at = 0;  // the stage that is kept or dropped, or the boundary that a sweep ends at
  size_t option = 0;
};

// A table computes within these limits.
struct PieceLimits {
  int64_t memory = kInfeasible;
  int64_t cost = kInfeasible;
  int64_t grid = 1;
  const LossBound* bound = nullptr;
};

class PieceTable {
 public:
  PieceTable(const ChainModel& model, bool drops, size_t reach, const PieceLimits& limits,
             int threads, SearchControl& control);

  bool complete() const { return complete_; }
  Bytes memory() const { return Bytes(bytes_); }
  CurveView root() const { return curve(whole()); }
  Trace trace(int64_t memory) const;

 private:
  Piece whole() const { return {0, 0, model_.stages, true, -1}; }
  size_t slot(const Piece& piece) const {
    const size_t width = goals(piece.first, piece.last);
    const size_t goal =
        piece.pinned && model_.depends_on_pin(piece.first) ? width : piece.goal - piece.first;
    return base_[piece.first * (model_.stages + 1) + piece.last] +
           static_cast<size_t>(piece.option + 1) * (width + 1) + goal;
  }
  size_t goals(size_t first, size_t last) const { return 1 + std::min(reach_, last - first); }
  CurveView curve(const Piece& piece) const { return curves_[slot(piece)]; }
  int64_t rounded(int64_t cost) const { return cost - cost % limits_.grid; }
  int options_of(size_t last) const {
    return drops_ && last < model_.stages ? static_cast<int>(model_.options[last].size()) : 0;
  }
  int64_t held(size_t last, int option) const {
    return option < 0 ? model_.g[last + 1]
                      : model_.package(last, model_.options[last][static_cast<size_t>(option)]);
  }

  bool set_caps(const Piece& piece, Envelope& envelope) const;
  void compute(size_t first, size_t last, int option, Envelope& envelope);
  CostCurve onward(const Piece& piece, Envelope& envelope) const;
  void add(const PieceBranch& branch, Envelope& envelope) const;
  void store(const Piece& piece, Envelope& envelope);
  PieceBranch best_branch(const Piece& piece, int64_t memory) const;
  void take(const Piece& piece, int64_t memory, const PieceBranch& branch, Trace& trace) const;

  template <class Visit>
  void for_each_keep(const Piece& piece, const Visit& visit) const;
  // No sweep that costs more than `most` is listed.
  template <class Visit>
  void for_each_onward(const Piece& piece, size_t begin, int64_t most, const Visit& visit) const;
  template <class Visit>
  void for_each_drop(const Piece& piece, int64_t most, const Visit& visit) const;
  template <class Visit>
  void for_each_move(const Piece& piece, int64_t most, const Visit& visit) const;

  const ChainModel& model_;
  bool drops_;
  size_t reach_;  // the largest t - s
  PieceLimits limits_;
  std::vector<size_t> base_;  // by first stage, then by last
  std::vector<CostCurve> curves_;
  std::atomic<int64_t> bytes_ = 0;
  bool complete_ = false;
};

// Lists the ways to begin with the loss, with a backward, or with a stage that is kept.
template <class Visit>
void PieceTable::for_each_keep(const Piece& piece, const Visit& visit) const {
  const auto [i, goal, l, pinned, of] = piece;
  if (i != goal) return;
  if (i == model_.stages) {
    visit(PieceBranch{.kind = PieceBranch::kLoss, .from = model_.loss[pinned]});
    return;
  }
  const int64_t around = held(l, of);
  if (of >= 0 && i == l) {
    const auto o = static_cast<size_t>(of);
    visit(PieceBranch{.kind = PieceBranch::kReverse,
                      .from = std::max(around, model_.options[l][o].backward),
                      .at = l,
                      .option = o});
    return;
  }
  for (size_t o = 0; o < model_.options[i].size(); ++o) {
    const KeepOption& option = model_.options[i][o];
    const int64_t u = model_.given_back(i, option, pinned);
    const int64_t forward = i < l ? option.forward : option.stopped_forward;
    PieceBranch keep{
        .kind = PieceBranch::kKeep,
        .from = std::max(around + forward, model_.weights(i + 1, l) + option.backward - u),
        .cost = i < l ? option.cost : option.stopped_cost,
        .at = i,
        .option = o};
    if (i < l) {
      keep.right = Piece{i + 1, i + 1, l, option.reads_output, of};
      keep.right_shift = option.saved + model_.x[i + 1] - u;
    }
    visit(keep);
  }
}

// Lists the ways to go on to `goal` from x_first, which stays: sweeps to x_k, k from `begin` on.
template <class Visit>
void PieceTable::for_each_onward(const Piece& piece, size_t begin, int64_t most,
                                 const Visit& visit) const {
  const auto [s, goal, l, pinned, of] = piece;
  Sweep sweep(model_, s);
  for (size_t k = s + 1; k <= goal; ++k) {
    sweep.extend();
    if (rounded(sweep.least_cost()) > most) return;
    if (k < begin || curve({k, goal, l, false, of}).empty()) continue;
    for (const CurvePoint& step : sweep.steps()) {
      visit(PieceBranch{.kind = PieceBranch::kCheckpoint,
                        .from = held(l, of) + step.memory,
                        .cost = step.cost,
                        .right = Piece{k, goal, l, false, of},
                        .right_shift = model_.x[k],
                        .at = k});
    }
  }
}

template <class Visit>
void PieceTable::for_each_drop(const Piece& piece, int64_t most, const Visit& visit) const {
  const auto [s, goal, l, pinned, of] = piece;
  if (!drops_) return;
  Sweep sweep(model_, s);
  for (size_t k = s + 1; k < l; ++k) {
    sweep.extend();
    if (rounded(sweep.least_cost()) > most) return;
    if (k < goal) continue;
    for (size_t o = 0; o < model_.options[k].size(); ++o) {
      const KeepOption& option = model_.options[k][o];
      if (!option.reads_input) continue;
      for (const CurvePoint& step : sweep.steps()) {
        visit(PieceBranch{.kind = PieceBranch::kDrop,
                          .from = held(l, of) + std::max(step.memory, model_.x[k] + option.forward),
                          .cost = step.cost + option.cost,
                          .right = Piece{k + 1, k + 1, l, option.reads_output, of},
                          .right_shift = option.saved + model_.x[k + 1],
                          .left = Piece{s, goal, k, pinned, static_cast<int>(o)},
                          .left_shift = model_.weights(k + 1, l),
                          .at = k,
                          .option = o});
      }
    }
  }
}

template <class Visit>
void PieceTable::for_each_move(const Piece& piece, int64_t most, const Visit& visit) const {
  const auto [s, goal, l, pinned, of] = piece;
  if (s == goal) return;
  Sweep sweep(model_, s, model_.x[s]);
  for (size_t k = s + 1; k <= goal; ++k) {
    sweep.extend();
    if (rounded(sweep.least_cost()) > most) return;
    if (curve({k, goal, l, false, of}).empty()) continue;
    for (const CurvePoint& step : sweep.steps()) {
      visit(PieceBranch{.kind = PieceBranch::kMove,
                        .from = held(l, of) + step.memory,
                        .cost = step.cost,
                        .right = Piece{k, goal, l, false, of},
                        .right_shift = model_.x[k] - model_.x[s],
                        .at = k});
    }
  }
}

PieceTable::PieceTable(const ChainModel& model, bool drops, size_t reach, const PieceLimits& limits,
                       int threads, SearchControl& control)
    : model_(model), drops_(drops), reach_(reach), limits_(limits) {
  const size_t ends = model.stages + 1;
  base_.resize(ends * ends);
  std::vector<std::pair<size_t, size_t>> order;
  std::vector<size_t> length_ends;
  size_t slots = 0;
  for (size_t length = 0; length < ends; ++length) {
    for (size_t first = 0; first + length < ends; ++first) {
      const size_t last = first + length;
      base_[first * ends + last] = slots;
      slots += static_cast<size_t>(options_of(last) + 1) * (goals(first, last) + 1);
      order.emplace_back(first, last);
    }
    length_ends.push_back(order.size());
  }
  curves_.resize(slots);
  bytes_ = static_cast<int64_t>(slots * sizeof(CostCurve) + base_.size() * sizeof(size_t));
  std::vector<Envelope> envelopes(static_cast<size_t>(threads));
  const auto work = [&](int thread, size_t k) {
    const auto [first, last] = order[k];
    for (int option = -1; option < options_of(last); ++option) {
      compute(first, last, option, envelopes[static_cast<size_t>(thread)]);
    }
  };
  complete_ = for_each_by_level(length_ends, threads, work, [&](size_t k) {
    control.report(static_cast<double>(k) / static_cast<double>(order.size()));
    return !control.out_of_time() && bytes_ <= kMostBytes;
  });
}

// Sets the memory and the cost beyond which no plan within the limits has the piece. Returns false
// if no plan has it.
bool PieceTable::set_caps(const Piece& piece, Envelope& envelope) const {
  int64_t memory = limits_.memory, cost = limits_.cost;
  if (memory != kInfeasible) {
    memory -= model_.weights(piece.last + 1, model_.stages);
    if (piece.first > 0) memory -= model_.x[piece.first];
  }
  if (limits_.bound != nullptr) {
    const Cell cell{static_cast<int32_t>(piece.first), static_cast<int32_t>(piece.last), 0,
                    static_cast<int16_t>(piece.option), piece.pinned};
    const int64_t own = model_.least_sweep(piece.first, piece.goal);
    cost -= std::max<int64_t>(0, limits_.bound->around(cell) - own);
  }
  envelope.reset(memory, cost);
  return cost >= 0;
}

void PieceTable::add(const PieceBranch& branch, Envelope& envelope) const {
  const auto part = [&](const std::optional<Piece>& of, int64_t shift) {
    return of ? Shifted{curve(*of), shift} : Shifted{zero_function(), 0};
  };
  envelope.add_sum(part(branch.right, branch.right_shift), part(branch.left, branch.left_shift),
                   rounded(branch.cost), branch.from);
}

// Returns G of the piece's first stage, goal and last stage.
CostCurve PieceTable::onward(const Piece& piece, Envelope& envelope) const {
  if (!set_caps(piece, envelope)) return {};
  const size_t begin = piece.goal - std::min(reach_, piece.goal);
  for_each_onward(piece, begin, envelope.cost_cap(),
                  [&](const PieceBranch& branch) { add(branch, envelope); });
  return envelope.function();
}

// Leaves out the steps that no plan within the limits has: at the loss, the stages in front of the
// piece hold the rest of the memory.
void PieceTable::store(const Piece& piece, Envelope& envelope) {
  CostCurve steps = envelope.function();
  if (limits_.bound != nullptr && piece.last == model_.stages) {
    const Cell cell{static_cast<int32_t>(piece.first), static_cast<int32_t>(piece.last), 0, -1,
                    piece.pinned};
    std::erase_if(steps, [&](const CurvePoint& step) {
      return step.cost + limits_.bound->around(cell, step.memory) > limits_.cost;
    });
  }
  steps.shrink_to_fit();
  bytes_ += static_cast<int64_t>(steps.capacity() * sizeof(CurvePoint));
  curves_[slot(piece)] = std::move(steps);
}

// Computes the pieces of all goals. They need shorter pieces alone.
void PieceTable::compute(size_t first, size_t last, int option, Envelope& envelope) {
  std::vector<CostCurve> to_goal(last - first + 1);  // G, by goal - first
  for (size_t goal = first + 1; goal <= last; ++goal) {
    to_goal[goal - first] = onward({first, goal, last, false, option}, envelope);
  }
  for (size_t goal = first; goal < first + goals(first, last); ++goal) {
    for (const bool pinned : {false, true}) {
      if (pinned && (goal > first || !model_.depends_on_pin(first))) continue;
      const Piece piece{first, goal, last, pinned, option};
      if (!set_caps(piece, envelope)) continue;
      const auto visit = [&](const PieceBranch& branch) { add(branch, envelope); };
      for_each_keep(piece, visit);
      for (size_t next = goal + 1; next <= last; ++next) {
        const CostCurve& right = to_goal[next - first];
        if (right.empty()) continue;
        const Piece left{first, goal, next - 1, pinned, -1};
        envelope.add_sum({right, 0}, {curve(left), model_.weights(next, last)}, 0, 0);
      }
      for_each_drop(piece, envelope.cost_cap(), visit);
      for_each_move(piece, envelope.cost_cap(), visit);
      store(piece, envelope);
    }
  }
}

PieceBranch PieceTable::best_branch(const Piece& piece, int64_t memory) const {
  PieceBranch best;
  int64_t least = kInfeasible;
  const auto visit = [&](const PieceBranch& branch) {
    if (branch.from > memory) return;
    int64_t cost = rounded(branch.cost);
    for (const auto& [part, shift] :
         {std::pair(branch.right, branch.right_shift), std::pair(branch.left, branch.left_shift)}) {
      if (!part) continue;
      const int64_t of = cost_at(curve(*part), memory - shift);
      if (of == kInfeasible) return;
      cost += of;
    }
    if (cost >= least) return;
    least = cost;
    best = branch;
  };
  for_each_keep(piece, visit);
  for (size_t next = piece.goal + 1; next <= piece.last; ++next) {
    const Piece right{piece.first, next, piece.last, false, piece.option};
    const Piece left{piece.first, piece.goal, next - 1, piece.pinned, -1};
    for_each_onward(right, next - std::min(reach_, next), kInfeasible, [&](PieceBranch branch) {
      branch.left = left;
      branch.left_shift = model_.weights(next, piece.last);
      visit(branch);
    });
  }
  for_each_drop(piece, kInfeasible, visit);
  for_each_move(piece, kInfeasible, visit);
  if (least == kInfeasible) throw InternalError("the tables hold a plan that cannot be traced");
  return best;
}

// Adds the forwards of a branch to the trace.
void PieceTable::take(const Piece& piece, int64_t memory, const PieceBranch& branch,
                      Trace& trace) const {
  const ChainIndex index{model_.stages};
  const auto run = [&](size_t stage, int32_t variant, int64_t cost) {
    trace.cost += cost;
    trace.runs.push_back({index.forward(stage), variant});
  };
  const auto keep = [&](bool stops) {
    const KeepOption& option = model_.options[branch.at][branch.option];
    run(branch.at, stops ? option.stopped_variant : static_cast<int32_t>(branch.option) + 1,
        stops ? option.stopped_cost : option.cost);
  };
  if (branch.kind == PieceBranch::kLoss) trace.runs.push_back({index.loss(), 0});
  if (branch.kind == PieceBranch::kKeep) return keep(!branch.right);
  if (branch.kind == PieceBranch::kLoss || branch.kind == PieceBranch::kReverse) return;
  const int64_t room = memory - held(piece.last, piece.option);
  const int64_t freed = branch.kind == PieceBranch::kMove ? model_.x[piece.first] : 0;
  for (size_t k = piece.first; k < branch.at; ++k) {
    const int64_t input = k == piece.first ? 0 : model_.x[k] - freed;
    // Memory ascends and cost descends, so the last variant that fits is the cheapest.
    const SweepVariant* best = nullptr;
    for (const SweepVariant& way : model_.sweeps[k]) {
      if (way.memory <= room - input) best = &way;
    }
    run(k, best->variant, best->cost);
  }
  if (branch.kind == PieceBranch::kDrop) keep(false);
}

Trace PieceTable::trace(int64_t memory) const {
  struct Task {
    std::optional<Run> run;
    Piece piece = {};
    int64_t memory = 0;
  };
  const ChainIndex index{model_.stages};
  Trace trace;
  std::vector<Task> stack{{{}, whole(), memory}};
  while (!stack.empty()) {
    const Task task = stack.back();
    stack.pop_back();
    if (task.run) {
      trace.runs.push_back(*task.run);
      continue;
    }
    const PieceBranch branch = best_branch(task.piece, task.memory);
    take(task.piece, task.memory, branch, trace);
    // The part that runs last is pushed first.
    if (branch.kind == PieceBranch::kKeep || branch.kind == PieceBranch::kReverse) {
      stack.push_back({Run{index.backward(branch.at), static_cast<int32_t>(branch.option)}});
    }
    if (branch.left) stack.push_back({{}, *branch.left, task.memory - branch.left_shift});
    if (branch.right) stack.push_back({{}, *branch.right, task.memory - branch.right_shift});
  }
  return trace;
}

// Returns the largest cost that means less time than this one.
int64_t faster_than(const ChainModel& model, int64_t cost) {
  const int64_t time = cost * model.cost_unit / model.time_weight;
  return (time * model.time_weight - 1) / model.cost_unit - (time == 0);
}

size_t count_pieces(const ChainModel& model, bool drops, size_t reach) {
  size_t pieces = 0;
  for (size_t last = 0; last <= model.stages; ++last) {
    const size_t ways = drops && last < model.stages ? 1 + model.options[last].size() : 1;
    for (size_t first = 0; first <= last; ++first) {
      pieces += ways * (2 + std::min(reach, last - first));
    }
  }
  return pieces;
}

}  // namespace

size_t floating_reach(const ChainModel& model, bool drops, size_t most_pieces) {
  if (model.stages * model.stages / 2 > most_pieces) return 0;
  size_t fits = 0, fails = model.stages + 1;
  while (fails - fits > 1) {
    const size_t reach = fits + (fails - fits) / 2;
    (count_pieces(model, drops, reach) <= most_pieces ? fits : fails) = reach;
  }
  return fits;
}

bool search_floating(const ChainModel& model, const FloatingSearch& search, int64_t memory,
                     ClassResult& outcome, SearchControl& control) {
  const auto [drops, reach, threads, coarse_passes] = search;
  const bool whole = reach >= model.stages;
  Bracket& bracket = outcome.bracket;
  const bool worth_it = whole || reach > 0;
  if (!bracket.best) {
    if (!worth_it) return false;
    const PieceTable floors(model, drops, reach, {.grid = kNoCosts}, threads, control);
    if (!floors.complete()) return false;
    const int64_t floor = floors.root().front().memory;
    Trace plan = floors.trace(std::max(floor, memory));
    if (floor > memory) {
      if (!whole) return false;
      outcome.floor = floor;
      outcome.smallest = std::move(plan.runs);
      return true;
    }
    bracket.best = std::move(plan);
  }
  const LossBound bound(model, drops ? Schedules::kDroppedInputs : Schedules::kPersistent, memory);
  bracket.lower = std::min(bound.lower(), bracket.best->cost);
  const bool coarse = coarse_passes == CoarsePasses::kAlways ||
                      (coarse_passes == CoarsePasses::kWhereUseful && model.stages > kOnePass);
  int64_t grid = coarse ? std::max<int64_t>(1, bracket.best->cost / kPassSteps) : 1;
  for (bool done = !worth_it; !done && !bracket.proven(model);
       grid = std::max<int64_t>(1, grid / kPassFiner)) {
    const PieceTable table(model, drops, reach,
                           {.memory = memory,
                            .cost = faster_than(model, bracket.best->cost),
                            .grid = grid,
                            .bound = &bound},
                           threads, control);
    bracket.memory = std::max(bracket.memory, table.memory());
    if (!table.complete()) return true;
    const int64_t value = cost_at(table.root(), memory);
    if (value != kInfeasible) {
      Trace plan = table.trace(memory);
      if (plan.cost < bracket.best->cost) bracket.best = std::move(plan);
    }
    done = value == kInfeasible || grid == 1;
    if (whole) {
      bracket.lower = std::max(bracket.lower, std::min(value, bracket.best->cost));
    }
  }
  return true;
}

Answer floating_chain(const ChainProblem& problem) {
  const std::string& wanted = problem.options.schedule_class;
  if (!wanted.empty() && wanted != kFloating && wanted != kFloatingDropped) {
    throw InputError(
        fmt::format("planner 'floating' has no schedule class '{}'; it has '{}' and '{}'", wanted,
                    kFloating, kFloatingDropped));
  }
  const bool drops = wanted != kFloating;
  SearchControl control = SearchControl(problem.options, "floating").part(1 - kReserve);
  control.report(0);
  const ChainModel model = make_model(problem.chain, Stops::kEarly);
  const int64_t memory = problem.budget.count() - bytes_around(model);
  const int threads = thread_count(problem.options.threads);
  SearchControl first = control.part(kChainShare);
  ClassResult outcome = search_class(model, Schedules::kPersistent, memory, {}, threads, first);
  if (drops) {
    outcome = search_class(model, Schedules::kDroppedInputs, memory, outcome.bracket.best, threads,
                           first);
  }
  const char* of_chain = class_name(outcome.schedules);
  if (!outcome.bracket.best && !outcome.infeasible()) return simplest_plan(problem, "floating");
  const size_t reach = floating_reach(model, drops, kMostPieces);
  outcome.bracket.exact = false;
  const bool of_class = search_floating(model, {drops, reach, threads}, memory, outcome, control);
  Answer answer = to_answer(problem, model, outcome);
  answer.schedule_class = !of_class ? of_chain : drops ? kFloatingDropped : kFloating;
  return answer;
}

}  // namespace reprise::internal::chain
