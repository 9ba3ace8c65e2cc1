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

constexpr size_t kMostStages = 256;  // of a period
constexpr double kShare = 0.9;       // of the time limit, after which no other period is looked at

// Sweeps all stages and stores every `period`-th activation, which may move. With `keeps_last`, the
// last block runs forward once.
Choices every(size_t period, size_t stages, bool keeps_last) {
  Choices choices(stages);
  const size_t last = (stages - 1) / period * period;  // begin of the last block
  for (size_t k = 0; k < stages; ++k) {
    if (!keeps_last || k < last) choices[k].option = kSwept;
    if (k % period == 0) choices[k].cut = 1;
    choices[k].input_lane = 0;
  }
  return choices;
}

}  // namespace

Answer double_checkpoint_chain(const ChainProblem& problem) {
  const size_t stages = problem.chain.stages.size();
  const size_t longest = std::min(levels::longest_segment(stages), kMostStages);
  // Where nothing can move, there is one level of checkpoints.
  if (place::lanes_of(problem.options.machine).empty()) return baselines::periodic_chain(problem);
  Judge judge(problem, longest, "double_checkpoint");
  const common::SearchControl control = judge.control().part(kShare);
  for (size_t period = 1; period <= longest && !control.out_of_time(); ++period) {
    for (const bool keeps_last : {true, false}) {
      judge.offer(every(period, stages, keeps_last));
    }
  }
  return judge.answer();
}

}  // namespace reprise::internal::literature
