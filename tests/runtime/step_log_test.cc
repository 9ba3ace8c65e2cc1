// A measured step is the same step, and it says of every run what the plan says of it: the bytes to
// the byte, and times of its own.
#include "reprise/model/lower.h"
#include "reprise/runtime/capture.h"
#include "step_cases.h"

namespace reprise::runtime::testing {
namespace {

int64_t count_runs(const Plan& plan, const std::string& without = {}) {
  int64_t count = 0;
  for (const Action& action : plan.actions) {
    count += action.kind == ActionKind::kRun && action.id != without;
  }
  return count;
}

void expect_as_planned(const RunLog& log, const Plan& plan) {
  EXPECT_NO_THROW(validate(log, plan));
  EXPECT_EQ(log.planned.peak, log.measured.peak);
  EXPECT_EQ(log.planned.time, plan.time);
  EXPECT_GT(log.measured.time, Nanos(0));
  Nanos sum;
  for (const RunLogEntry& entry : log.actions) {
    EXPECT_EQ(entry.planned_bytes, entry.measured_bytes) << entry.action << ", " << entry.op;
    EXPECT_GT(entry.measured_time, Nanos(0)) << entry.op;
    sum += entry.measured_time;
  }
  if (log.steps == 1) {
    EXPECT_LE(sum, log.measured.time);
  }
}

class StepLogTest : public RuntimeTest {};

TEST_F(StepLogTest, OfAChainIsWhatWasPlanned) {
  const std::vector<Stage> stages = conv_stages();
  const StepState state(stages, {images_});
  auto remat =
      reprise::runtime::remat(stages, {images_}, {.loss = mean_square, .measure = quick()});
  auto step = [&] {
    Bits bits = planned_step(*remat, stages, {images_}, mean_square);
    drop_gradients(stages, {});
    return bits;
  };
  for (const bool tight : {false, true}) {
    SCOPED_TRACE(tight);
    if (tight) remat->set_budget(smallest_budget(*remat));
    state.restore();
    remat->log_steps(2);
    EXPECT_FALSE(remat->run_log());
    const Bits measured = step();
    const Plan plan = *remat->plan().plan;
    const std::string loss = lower(remat->chain()).ops[stages.size()].id;
    for (int steps = 1; steps <= 3; ++steps) {  // the third is not measured any more
      if (steps > 1) step();
      ASSERT_TRUE(remat->run_log());
      const RunLog log = *remat->run_log();
      EXPECT_EQ(log.steps, std::min(steps, 2));
      EXPECT_EQ(static_cast<int64_t>(log.actions.size()), count_runs(plan, loss));
      expect_as_planned(log, plan);
      EXPECT_EQ(remat->last_step().measured_peak, log.measured.peak);
    }
    state.restore();
    EXPECT_EQ(difference(measured, step()), "");
  }
}

TEST_F(StepLogTest, OfACapturedStepIsWhatWasPlanned) {
  for (const Case& work : cases()) {
    SCOPED_TRACE(work.name);
    CapturedStep step = capture(
        [&work](const Tensors& in) {
          at::Tensor loss = work.loss(in);
          loss.backward();
          return loss;
        },
        work.inputs, {.modules = {work.module}, .measure = quick()});
    step.log_steps(3);
    EXPECT_FALSE(step.run_log());
    for (int n = 0; n < 4; ++n) {
      work.module->zero_grad();
      step.run(work.inputs);
    }
    const std::optional<RunLog> log = step.run_log();
    ASSERT_TRUE(log);
    EXPECT_GE(log->steps, 2);  // the first may have found other memory
    EXPECT_EQ(static_cast<int64_t>(log->actions.size()), count_runs(*step.planned().plan));
    expect_as_planned(*log, *step.planned().plan);
    step.plan({.budget = step.planned().budget, .time_limit = Nanos(100'000'000)});
    EXPECT_FALSE(step.run_log()) << "of another plan";
  }
}

}  // namespace
}  // namespace reprise::runtime::testing
