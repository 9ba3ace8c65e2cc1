// A run of the plan in force: begun, advanced from entry to entry, and ended.
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "reprise/runtime/capture.h"
#include "runtime/arena/step_memory.h"
#include "runtime/device/step_log.h"

namespace reprise::runtime::internal::graph {

struct StepState;

// Measures the bytes that a run takes on other devices than the step's, from its construction on.
class OtherPeaks {
 public:
  explicit OtherPeaks(const std::vector<c10::Device>& devices);
  // Returns the reports with the peaks so far.
  std::vector<OtherDeviceReport> with(std::vector<OtherDeviceReport> reports) const;

 private:
  std::vector<std::pair<c10::Device, int64_t>> before_;
};

// Between two advances the caller's own code may run: the arena, the limit and the state of the
// thread are in force only while the plan advances. `state` and `inputs` outlive the run.
class PlanRun {
 public:
  // The CPU allocator has this limit while the plan advances.
  PlanRun(StepState& state, const Tensors& inputs, std::optional<int64_t> limit);
  PlanRun(const PlanRun&) = delete;
  PlanRun& operator=(const PlanRun&) = delete;

  // Walks the entries before this position that were not walked yet.
  void advance(size_t end);
  // Returns the bytes that were live when the plan began.
  int64_t live_before() const { return live_before_; }
  // Returns the dispatch keys of the thread, as the step was called.
  const c10::impl::LocalDispatchKeySet& keys() const { return keys_; }
  // Returns how many entries of the plan have run.
  size_t position() const { return position_; }
  // Walks to the end, and returns the outputs.
  Tensors finish();
  // Drops all that was computed. The next advance begins anew.
  void abandon();

  // These describe the run behind finish(). The peak has the bytes of `uncounted` and `holes`.
  void report(CapturedStepReport& report, Bytes uncounted, Bytes holes);

 private:
  void begin();

  StepState& state_;
  const Tensors& inputs_;
  const std::optional<int64_t> limit_;
  const c10::impl::LocalDispatchKeySet keys_;  // of the thread, as the step was called
  int64_t live_before_ = 0;
  size_t position_ = 0;
  bool begun_ = false;
  std::optional<OtherPeaks> other_peaks_;
  std::optional<device::StepMeter> meter_;
  std::optional<arena::StepMemory::RunScope> in_place_;
};

}  // namespace reprise::runtime::internal::graph
