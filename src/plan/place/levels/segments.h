// Segments tabulates how fast the backward of a stretch of stages is, when nothing of the stretch is
// in memory but its input: the recurrence of plan/chain (chain.cc), for short stretches only, and
// with their input live to the end. Memory is exact. Times are those of all runs: sweeps, forwards
// that keep, and backwards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "plan/chain/cost_curve.h"
#include "plan/chain/model.h"
#include "reprise/model/chain.h"
#include "reprise/model/plan.h"

namespace reprise::internal::levels {

// Returns how many stages a segment may have so that the table of a chain takes about a second.
size_t longest_segment(size_t stages);

class Segments {
 public:
  // Stretches have at most `window` stages, and may use at most `memory` bytes beyond the fixed ones
  // and x_0. Equal stretches are computed once. O(stages * window) curves, each the least of O(window)
  // sums. Both references must outlive the table.
  Segments(const Chain& chain, const chain::ChainModel& model, size_t window, int64_t memory);

  size_t window() const { return window_; }

  // Returns the curve of the stages first..last, from bytes to the least time. The bytes count
  // g_{last+1}, which is live, and not x_first, which is live too.
  chain::CurveView curve(size_t first, size_t last) const { return curves_[cell_of(first, last)]; }
  // Returns the runs of a step of that curve. They are computed once for equal stretches.
  const std::vector<Run>& runs(size_t first, size_t last, size_t step);
  // Returns the time to run the stages first..end-1 forward, keeping nothing.
  int64_t sweep_time(size_t first, size_t end) const { return sweeps_[end] - sweeps_[first]; }
  // Returns the bytes of such a run of stage k, with its input and its output.
  int64_t sweep_bytes(size_t k) const { return sweep_bytes_[k]; }

 private:
  size_t cell_of(size_t first, size_t last) const { return cells_[first][last - first]; }
  void find_equal();
  chain::CostCurve compute(size_t first, size_t last, chain::Envelope& envelope) const;
  template <class Visit>
  void for_each_way(size_t first, size_t last, const Visit& visit) const;
  void trace(size_t first, size_t last, int64_t memory, std::vector<Run>& runs) const;
  int64_t option_time(size_t stage, size_t option) const;

  const Chain& chain_;
  const chain::ChainModel& model_;
  size_t window_;
  int64_t memory_;
  std::vector<int64_t> sweeps_;             // [k] = the time of sweeping stages 0..k-1
  std::vector<int64_t> sweep_bytes_;        // by stage
  std::vector<std::vector<size_t>> cells_;  // [first][last - first]
  std::vector<chain::CostCurve> curves_;    // by cell
  // By cell, first stage and step: traced runs.
  std::map<std::pair<size_t, size_t>, std::vector<Run>> runs_;
};

}  // namespace reprise::internal::levels
