// Steps that are captured and move values to a disk, for the tests of the disk and of its faults.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "fault_subjects.h"
#include "offload_fixture.h"
#include "reprise/check/simulate.h"
#include "reprise/runtime/capture.h"
#include "step_cases.h"

namespace reprise::runtime::testing {

inline constexpr Nanos kShort{150'000'000};

// A step with what it is made of.
struct MovingStep {
  std::string name;
  std::vector<Stage> stages;
  Tensors inputs;
  std::function<at::Tensor(const Tensors&)> step;  // forward, loss, backward
};

inline MovingStep of_case(const Case& work) {
  return {work.name, {{work.name, work.module, {}}}, work.inputs, [work](const Tensors& in) {
            at::Tensor loss = work.loss(in);
            loss.backward();
            return loss;
          }};
}

inline MovingStep of_chain(const ChainSubject& chain) {
  return {chain.name, chain.stages, chain.inputs, [chain](const Tensors& in) {
            at::Tensor loss = chain.loss(run_plain(chain.stages, in));
            loss.backward();
            return loss;
          }};
}

// Without alternatives, operations run again or values move below plain training's peak.
inline AlternativeOptions none() {
  AlternativeOptions options;
  for (const AlternativeInfo& info : alternatives()) options.without.push_back(info.name);
  return options;
}

inline CapturedStep captured(const MovingStep& subject, AlternativeOptions alternatives = none()) {
  return capture(subject.step, subject.inputs,
                 {.measure = quick(), .alternatives = std::move(alternatives)});
}

inline std::vector<Bits> plain_steps(const MovingStep& subject, int count) {
  std::vector<Bits> results;
  for (int k = 0; k < count; ++k) {
    drop_gradients(subject.stages, subject.inputs);
    const at::Tensor loss = subject.step(subject.inputs);
    results.push_back(bits_now(subject.stages, subject.inputs, loss));
  }
  return results;
}

// Returns the smallest peak that a search finds with this disk.
inline Bytes smallest(const CapturedStep& step, const Machine& machine) {
  const PlanResult none =
      plan(step.graph(), {.budget = step.graph().fixed, .time_limit = kShort, .machine = machine});
  return none.smallest_budget.value();
}

class CaptureOffload : public WithDisk {
 protected:
  StepPlanOptions planning(Bytes budget, const Machine& machine, bool arena = true) const {
    return {.budget = budget, .time_limit = kShort, .arena = arena, .offload = offload(machine)};
  }

  // Plans with the disk and all memory, and returns a budget between the smallest one (share 0) and
  // plain training's peak (share 1).
  Bytes budget_at(CapturedStep& step, const Machine& machine, double share) const {
    step.plan({.time_limit = kShort, .offload = offload(machine)});  // the buffers count now
    const int64_t least = smallest(step, machine).count();
    const int64_t most = baseline(step.graph()).peak.count();
    return Bytes(least + static_cast<int64_t>(share * static_cast<double>(most - least)));
  }

  // Runs steps, and compares them with the expected ones.
  void expect_steps(CapturedStep& step, const MovingStep& subject,
                    const std::vector<Bits>& expected) {
    for (size_t n = 0; n < expected.size(); ++n) {
      SCOPED_TRACE(fmt::format("step {}", n));
      drop_gradients(subject.stages, subject.inputs);
      const at::Tensor loss = step.run(subject.inputs);
      EXPECT_EQ(difference(expected[n], bits_now(subject.stages, subject.inputs, loss)), "");
      const CapturedStepReport report = step.last_step();
      EXPECT_EQ(report.predicted_peak.count(), report.measured_peak.count());
      EXPECT_LE(report.measured_peak, report.budget);
      EXPECT_EQ(report.waited > Nanos(0), report.moved_out > Bytes(0));
      EXPECT_LE(report.moved_out, report.moved_in) << "a value that leaves twice is sent once";
      EXPECT_EQ(report.fallbacks, 0);
    }
  }
};

}  // namespace reprise::runtime::testing
