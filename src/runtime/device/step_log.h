// Measures steps action by action while they run, for the times and bytes of a run log.
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

// Measures one step. The clock starts at construction.
class StepMeter {
 public:
  struct LoggedRun {
    size_t action = 0;  // position in the program
    Nanos time;         // of the run alone, with a wait for the device
    Bytes bytes;        // the largest device bytes while it runs
  };

  explicit StepMeter(c10::Device device);

  // Runs actions like execute() of the interpreter. It resets the allocator's peak at every run;
  // peak() returns the peak of the step.
  void execute(const Program& program, size_t begin, size_t end, Backend& backend);
  // Ends the step.
  void finish();

  // These functions describe the step once it is over.
  Bytes peak() const { return peak_; }
  Nanos time() const { return time_; }
  const std::vector<LoggedRun>& samples() const { return samples_; }

 private:
  class MeasuredBackend;
  // Takes the allocator's peak into peak_ before the peak is reset.
  void note_peak();
  using Clock = std::chrono::steady_clock;

  c10::Device device_;
  Clock::time_point start_;
  Nanos time_;
  Bytes peak_;
  std::vector<LoggedRun> samples_;
};

// Collects the steps that were asked for. It keeps those that ran the same plan as the last of
// them, with the same predicted cost.
class StepLog {
 public:
  // Asks for the next `steps` steps and forgets earlier measurements.
  void want(int64_t steps);
  bool wanted() const { return missing_ > 0; }

  // Adds a step of `program` that came to its end. `planned` is its predicted cost. `uncounted` are
  // the live bytes that the allocator does not count.
  void add(std::shared_ptr<const Program> program, const StepCost& planned, Bytes uncounted,
           StepMeter meter);

  // Returns the log for `plan` of `graph`, from which `program` was made. It is absent if no step
  // of `program` was measured.
  std::optional<RunLog> run_log(const Program& program, const Graph& graph, const Plan& plan,
                                c10::Device device, const Machine& machine = {}) const;

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
