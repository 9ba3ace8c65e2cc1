#include "runtime/device/step_log.h"

#include <algorithm>

#include "reprise/check/simulate.h"
#include "reprise/runtime/allocator.h"
#include "runtime/device/device.h"
#include "runtime/device/median.h"

namespace reprise::runtime::internal::device {

class StepMeter::MeasuredBackend final : public Backend {
 public:
  MeasuredBackend(StepMeter& meter, size_t first, Backend& backend)
      : meter_(meter), action_(first), backend_(backend) {}

  bool has(int32_t memory) const override { return backend_.has(memory); }
  // Runs on other devices are not measured.
  void run(const RunAction& step) override {
    if (step.memory > 0) {
      backend_.run(step);
      ++action_;
      return;
    }
    const c10::Device device = meter_.device_;
    synchronize(device);
    meter_.note_peak();
    reset_peak(device);
    const auto start = Clock::now();
    backend_.run(step);
    synchronize(device);
    const Nanos time(std::chrono::nanoseconds(Clock::now() - start).count());
    meter_.samples_.push_back({action_++, time, Bytes(memory_count(device).peak)});
  }

  void free(ValueIndex value, int32_t memory) override {
    backend_.free(value, memory);
    ++action_;
  }
  void copy(const CopyAction& copy) override {
    backend_.copy(copy);
    ++action_;
  }
  void wait(ValueIndex value, int32_t memory) override {
    backend_.wait(value, memory);
    ++action_;
  }

 private:
  StepMeter& meter_;
  size_t action_;
  Backend& backend_;
};

StepMeter::StepMeter(c10::Device device) : device_(device), start_(Clock::now()) {}

void StepMeter::execute(const Program& program, size_t begin, size_t end, Backend& backend) {
  MeasuredBackend measured(*this, begin, backend);
  reprise::execute(program, begin, end, measured);
}

void StepMeter::finish() {
  note_peak();
  time_ = Nanos(std::chrono::nanoseconds(Clock::now() - start_).count());
}

void StepMeter::note_peak() { peak_ = std::max(peak_, Bytes(memory_count(device_).peak)); }

void StepLog::want(int64_t steps) {
  *this = {};
  missing_ = std::max<int64_t>(0, steps);
}

void StepLog::add(std::shared_ptr<const Program> program, const StepCost& planned, Bytes uncounted,
                  StepMeter meter) {
  if (program != program_ || planned != planned_) steps_.clear();
  program_ = std::move(program);
  planned_ = planned;
  steps_.push_back({uncounted, std::move(meter)});
  --missing_;
}

std::optional<RunLog> StepLog::run_log(const Program& program, const Graph& graph, const Plan& plan,
                                       c10::Device device, const Machine& machine) const {
  if (steps_.empty() || program_.get() != &program) return std::nullopt;
  const Timeline timeline = simulate(graph, plan, machine);
  const Bytes shift = planned_.peak - timeline.peak;  // other memory came or went
  RunLog log{.problem = plan.problem,
             .device = device.str(),
             .steps = static_cast<int64_t>(steps_.size()),
             .planned = planned_};
  std::vector<Nanos> times;
  for (const LoggedStep& step : steps_) {
    times.push_back(step.meter.time());
    log.measured.peak = std::max(log.measured.peak, step.meter.peak() + step.uncounted);
  }
  log.measured.time = median(times);
  for (size_t k = 0; k < steps_.front().meter.samples().size(); ++k) {
    const size_t a = steps_.front().meter.samples()[k].action;
    RunLogEntry entry{.action = static_cast<int64_t>(a),
                      .op = plan.actions[a].id,
                      .variant = plan.actions[a].variant,
                      .planned_bytes = timeline.steps[a].during + shift,
                      .planned_time = timeline.steps[a].time};
    times.clear();
    for (const LoggedStep& step : steps_) {
      const StepMeter::LoggedRun& sample = step.meter.samples()[k];
      times.push_back(sample.time);
      entry.measured_bytes = std::max(entry.measured_bytes, sample.bytes + step.uncounted);
    }
    entry.measured_time = median(times);
    log.actions.push_back(std::move(entry));
  }
  return log;
}

}  // namespace reprise::runtime::internal::device
