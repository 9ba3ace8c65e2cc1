#include "runtime/graph/plan_run.h"

#include "reprise/runtime/allocator.h"
#include "runtime/device/limit_scope.h"
#include "runtime/graph/step_state.h"
#include "runtime/step/replay_scope.h"

namespace reprise::runtime::internal::graph {

using RunScope = arena::StepMemory::RunScope;
using device::LimitScope;
using device::StepMeter;
using step::ReplayScope;

OtherPeaks::OtherPeaks(const std::vector<c10::Device>& devices) {
  for (size_t m = 1; m < devices.size(); ++m) {
    reset_peak(devices[m]);
    before_.emplace_back(devices[m], memory_count(devices[m]).live);
  }
}

std::vector<OtherDeviceReport> OtherPeaks::with(std::vector<OtherDeviceReport> reports) const {
  for (size_t k = 0; k < reports.size(); ++k) {
    const auto& [device, live] = before_.at(k);
    reports[k].measured_peak = Bytes(memory_count(device).peak - live);
  }
  return reports;
}

namespace {

struct Pause {
  RunScope& scope;
  ~Pause() { scope.pause(); }
};

}  // namespace

PlanRun::PlanRun(StepState& state, const Tensors& inputs, std::optional<int64_t> limit)
    : state_(state),
      inputs_(inputs),
      limit_(limit),
      keys_(c10::impl::tls_local_dispatch_key_set()) {}

void PlanRun::begin() {
  begun_ = true;
  state_.memory.evacuate();
  reset_peak(state_.recording().device);
  live_before_ = memory_count(state_.recording().device).live;
  other_peaks_.emplace(state_.captured().program.lowered.devices);
  if (state_.log.wanted()) meter_.emplace(state_.recording().device);
}

void PlanRun::advance(size_t end) {
  if (!begun_) begin();
  if (end <= position_) return;
  const c10::impl::ForceDispatchKeyGuard as_called(keys_);
  const LimitScope limit(limit_, state_.recording().device);
  if (!in_place_) {
    in_place_.emplace(state_.memory);
    state_.begin_replay(inputs_);
  } else {
    in_place_->resume();
  }
  const Pause pause{*in_place_};
  const ReplayScope scope;
  const Program& program = *state_.outcome().program;
  Replay& replay = state_.captured().replay;
  if (meter_) {
    meter_->execute(program, position_, end, replay);
  } else {
    execute(program, position_, end, replay);
  }
  position_ = end;
}

Tensors PlanRun::finish() {
  if (!begun_) begin();
  if (position_ == 0 && !meter_) {
    const LimitScope limit(limit_, state_.recording().device);
    if (state_.launch(inputs_)) return state_.outputs_now();
  }
  const Program& program = *state_.outcome().program;
  advance(program.entries().size());
  in_place_->resume();
  const ReplayScope scope;
  state_.captured().replay.settle();
  Tensors outputs = state_.outputs_now();
  in_place_->finish();
  in_place_.reset();
  return outputs;
}

void PlanRun::abandon() {
  in_place_.reset();
  state_.captured().replay.clear();
  begun_ = false;
  position_ = 0;
}

void PlanRun::report(CapturedStepReport& report, Bytes uncounted, Bytes holes) {
  report.measured_peak = Bytes(memory_count(state_.recording().device).peak) + uncounted + holes;
  report.other_devices = other_peaks_->with(state_.outcome().other_devices);
  if (!meter_) return;
  meter_->finish();
  report.measured_peak = meter_->peak() + uncounted + holes;
  state_.log.add(state_.outcome().program,
                 {report.predicted_peak, state_.outcome().plan->result.plan->time},
                 uncounted + holes, std::move(*meter_));
}

}  // namespace reprise::runtime::internal::graph
