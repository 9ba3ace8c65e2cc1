// Steps that are measured while they run, action by action: the times and the bytes of a run log.
#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "reprise/model/graph.h"
#include "reprise/model/plan.h"
#include "reprise/model/runlog.h"
#include "reprise/run/interpreter.h"

namespace reprise::runtime::internal::device {

// One step. Its clock starts when it is made.
class StepMeter {
 public:
  struct LoggedRun {
    size_t action = 0;  // position in the program
    Nanos time;         // of the run alone; the device is waited for
    Bytes bytes;        // the largest device bytes while it runs
  };

  explicit StepMeter(c10::Device device);

  // As execute() of the interpreter. Resets the allocator's peak at every run: the step's is peak().
  void execute(const Program& program, size_t begin, size_t end, Backend& backend);
  // The step is over.
  void finish();

  // Of the step, once it is over.
  Bytes peak() const { return peak_; }
  Nanos time() const { return time_; }
  const std::vector<LoggedRun>& samples() const { return samples_; }

 private:
  class MeasuredBackend;
  // The allocator's peak into peak_, before it is reset.
  void note_peak();
  using Clock = std::chrono::steady_clock;

  c10::Device device_;
  Clock::time_point start_;
  Nanos time_;
  Bytes peak_;
  std::vector<LoggedRun> samples_;
};

// Of so many steps as were asked for, those with the plan and the other memory of the last one of them.
class StepLog {
 public:
  // The next so many steps; what was measured before is forgotten.
  void want(int64_t steps);
  bool wanted() const { return missing_ > 0; }

  // A step of `program` that came to its end. `planned` is its predicted cost, `uncounted` what is live
  // beside what the allocator counts.
  void add(std::shared_ptr<const Program> program, const StepCost& planned, Bytes uncounted,
           StepMeter meter);

  // For `plan` of `graph`, of which `program` was made; none if no step of it was measured.
  std::optional<RunLog> run_log(const Program& program, const Graph& graph, const Plan& plan,
                                c10::Device device) const;

 private:
  struct LoggedStep {
    Bytes uncounted;
    StepMeter meter;
  };

  int64_t missing_ = 0;
  std::shared_ptr<const Program> program_;
  StepCost planned_;
  std::vector<LoggedStep> steps_;
};

}  // namespace reprise::runtime::internal::device
