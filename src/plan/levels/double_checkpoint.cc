// This planner keeps checkpoints on two levels: every R-th activation moves to another memory, and
// the stages between two of them are made again within the memory of the device, block by block:
// "double checkpointing" of W. Bencheikh, J. Finkbeiner, E. Neftci, "Optimal gradient checkpointing
// for sparse and recurrent architectures using off-chip memory", arXiv 2412.11810, 2024.
//
// Paper                         here
// R, the period                 each one up to kMostStages; the fastest plan wins
// local slots of one size       bytes, with the exact recurrence of a segment (segments.h)
// copies that overlap           flow.h, whose plan decides what has to leave at all
// the last block                with its activations kept, or swept as the others; the faster one
//
// In the paper's setting, equal stages of time f with a copy of time c, T(R) is the time of all
// forwards and backwards, and beside these, with K = N / R blocks and C the time to make a block
// again, about (K - 1) max(C, c) + (K - 1) max(0, c - R f).
//
// It is here to be compared with: `levels` decides for each value alone.
//
// Complexity: O(periods) flows (flow.h), and the segments' O(stages * period^2).
//
// Assumes: every forward may run again. Not proven: nothing in its class; the bound is that of
// `levels`.
//
// Tests: those of every planner; property/levels_test.cc (the time of equal stages; never faster
// than the bound).
#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>
#include <utility>

#include "plan/chain/model.h"
#include "plan/levels/bound.h"
#include "plan/levels/choices.h"
#include "plan/levels/flow.h"
#include "plan/levels/improve.h"
#include "plan/levels/lanes.h"
#include "plan/levels/planner.h"
#include "plan/levels/segments.h"

namespace reprise::internal::levels {

namespace {

using Clock = std::chrono::steady_clock;

constexpr double kSegmentWork = 2e7;  // stages * period^2, at most
constexpr size_t kMostStages = 256;   // of a period
constexpr double kShare = 0.9;        // of the time limit, after which no other period is looked at

size_t longest_period(size_t stages) {
  const auto most = static_cast<size_t>(std::sqrt(kSegmentWork / static_cast<double>(stages)));
  return std::min({stages, std::max<size_t>(most, 2), kMostStages});
}

// Sweeps all stages and stores every `period`-th activation, which may move. With `keeps_last`, the
// last block runs forward once.
Choices every(size_t period, size_t stages, bool keeps_last, bool moves) {
  Choices choices = keep_everything(stages);
  const size_t last = (stages - 1) / period * period;  // begin of the last block
  for (size_t k = 0; k < stages; ++k) {
    if (!keeps_last || k < last) choices.option[k] = kSwept;
    if (k % period == 0) choices.cut[k] = 1;
    if (moves) choices.input_lane[k] = 0;
  }
  return choices;
}

}  // namespace

Answer double_checkpoint_chain(const ChainProblem& problem) {
  const Clock::time_point deadline =
      Clock::now() + std::chrono::nanoseconds(static_cast<int64_t>(
                         kShare * static_cast<double>(problem.options.time_limit.count())));
  common::SearchControl control(problem.options, "double_checkpoint");
  const chain::ChainModel model = chain::make_model(problem.chain);
  const Carrier carrier(problem.graph, problem.options.machine);
  const bool moves = !carrier.lanes().empty();
  const int64_t memory = problem.budget.count() - model.fixed - model.x[0];
  const size_t longest = longest_period(model.stages);
  Segments segments(problem.chain, model, longest, memory);
  Scheduler scheduler(model, segments, memory);
  FlowBuilder flows(problem.graph, carrier, ChainIndex{model.stages}.loss());
  const Workbench bench{model,  scheduler, flows, carrier.lanes().size(), problem.budget.count(),
                        control};

  Answer answer;
  answer.lower_bound = loss_bound(problem.chain, problem.options.machine, problem.budget);
  std::optional<Candidate> best;
  std::optional<FlowResult> refused;  // of those that did not fit, the one that needs least
  for (size_t period = 1; period <= longest && Clock::now() < deadline; ++period) {
    for (const bool keeps_last : {true, false}) {
      Candidate next = evaluate(bench, every(period, model.stages, keeps_last, moves));
      const FlowResult& flow = next.flow;
      if (!flow.fits) {
        if (flow.need > 0 && (!refused || flow.need < refused->need)) refused = flow;
      } else if (!best || flow.time < best->flow.time) {
        best = std::move(next);
      }
    }
  }
  if (!best) {
    answer.termination = Termination::kInfeasible;
    if (refused) {
      answer.smallest_budget = Bytes(refused->need);
      answer.blocking_op = problem.graph.ops[static_cast<size_t>(refused->at)].id;
    }
    return answer;
  }
  const FlowResult flow = flows.build(best->schedule, bench.budget);
  answer.actions = flows.actions(best->schedule.runs);
  answer.termination =
      Nanos(flow.time) == answer.lower_bound ? Termination::kOptimal : Termination::kFeasible;
  return answer;
}

}  // namespace reprise::internal::levels
