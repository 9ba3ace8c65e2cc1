// Segments tabulates how fast the backward of a stretch of stages is, when nothing of the stretch is
// in memory but its input: the recurrence of plan/chain (chain.cc), for short stretches only, and
// with their input live to the end. Memory is exact.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "plan/chain/cells.h"
#include "plan/chain/cost_curve.h"
#include "plan/chain/model.h"
#include "plan/chain/table.h"
#include "reprise/model/plan.h"

namespace reprise::internal::levels {

// Returns how many stages a segment may have so that the table of a chain takes about a second.
size_t longest_segment(size_t stages);

class Segments {
 public:
  // Stretches have at most `window` stages, and may use at most `memory` bytes beyond the fixed ones
  // and x_0. Equal stretches are computed once. O(stages * window) curves, each the least of O(window)
  // sums. The references must outlive the table.
  Segments(const Chain& chain, const chain::ChainModel& model, size_t window, int64_t memory,
           common::SearchControl& control);

  size_t window() const { return window_; }

  // Returns the curve of the stages first..last, from bytes to the least cost (ChainModel). The bytes
  // count g_{last+1}, which is live, and not x_first, which is live too.
  chain::CurveView curve(size_t first, size_t last) const {
    return table_.curve(cells_.slot(first, last, true));
  }
  // Returns the time of all runs of such a cost: sweeps, forwards that keep, and backwards.
  int64_t time_of(size_t first, size_t last, int64_t cost) const {
    return least_[last + 1] - least_[first] + model_.time_of(cost) - model_.least_time;
  }
  // Returns the runs of a step of that curve. They are computed once.
  const std::vector<Run>& runs(size_t first, size_t last, size_t step);
  // Returns the time to run the stages first..end-1 forward, keeping nothing.
  int64_t sweep_time(size_t first, size_t end) const { return sweeps_[end] - sweeps_[first]; }
  // Returns the bytes of such a run of stage k, with its input and its output.
  int64_t sweep_bytes(size_t k) const {
    return model_.x[k] + model_.x[k + 1] + chain_.stages[k].forward.workspace.count();
  }

 private:
  const Chain& chain_;
  const chain::ChainModel& model_;
  const size_t window_;
  const chain::ChainCells cells_;
  const chain::CurveTable table_;
  // [k] = the time of the stages 0..k-1: swept, and kept with the fastest options.
  std::vector<int64_t> sweeps_{0}, least_{0};
  std::map<std::pair<size_t, size_t>, std::vector<Run>> runs_;  // by stretch and step
};

}  // namespace reprise::internal::levels
