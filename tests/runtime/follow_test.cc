// This is the promise of CaptureOptions::follow. The function of a step runs once in every run, gets
// the numbers of the run, and may do something else: each run has the bits of plain training. A run
// beside a plan has the predicted peak, and every run stays inside the budget.
#include "lockstep_programs.h"
#include "reprise/check/simulate.h"
#include "reprise/model/errors.h"
#include "runtime/state/random_state.h"

namespace reprise::runtime::testing {
namespace {

using internal::state::RandomState;

class FollowTest : public LockstepTest {
 protected:
  void SetUp() override {
    LockstepTest::SetUp();
    x_ = at::randn({256, 16});
  }

  // Returns what one run leaves, with gradients that were not there before.
  Bits bits_of(const StepFunction& step) {
    block_->zero_grad();
    at::Tensor result = step({x_})[0];
    return bits_now(stages(), {x_}, result);
  }

  // Runs the function plainly, puts all back, and runs the followed step. Returns what differs.
  std::string difference_of_run(CapturedStep& step, const StepFunction& plain) {
    const RandomState start(at::kCPU);
    std::vector<at::Tensor> buffers;
    for (const at::Tensor& buffer : block_->buffers()) buffers.push_back(buffer.clone());
    const Bits expected = bits_of(plain);
    start.restore();
    {
      const at::NoGradGuard no_grad;
      const std::vector<at::Tensor> now = block_->buffers();
      for (size_t b = 0; b < now.size(); ++b) now[b].copy_(buffers[b]);
    }
    const StepFunction followed = [&](const Tensors& in) { return step.run_all(in); };
    return difference(expected, bits_of(followed)).substr(0, 200);
  }

  CapturedStep followed(const StepFunction& function) {
    return capture(function, {x_}, {.modules = {block_.ptr()}, .follow = true});
  }
};

TEST_F(FollowTest, TheFunctionRunsOnceInEachRunAndItsNumbersAreUsed) {
  std::vector<double> read;
  const StepFunction function = step_of([&](Block& block, Program& program, const at::Tensor& x) {
    const at::Tensor hidden = block->body(x) * program.scale;
    read.push_back(hidden.mean().item<double>());
    return Tensors{block->loss_of(hidden)};
  });
  CapturedStep step = followed(function);
  EXPECT_EQ(program_->runs, 0);
  EXPECT_FALSE(step.is_recorded());
  step.plan_ahead({.budget = "95%", .time_limit = Nanos(300'000'000)});
  for (int run = 0; run < 6; ++run) {
    SCOPED_TRACE(run);
    program_->scale = 1.0 + run;
    const int before = program_->runs;
    EXPECT_EQ(difference_of_run(step, function), "");
    EXPECT_EQ(program_->runs - before, 2);  // once plainly, and once followed
    ASSERT_GE(read.size(), 2U);
    EXPECT_EQ(read.back(), read[read.size() - 2]);
    if (run == 0) continue;
    const CapturedStepReport report = step.last_step();
    EXPECT_EQ(report.predicted_peak, report.measured_peak);
    EXPECT_LE(report.measured_peak, report.budget);
  }
  EXPECT_EQ(step.last_step().left, 1);
}

TEST_F(FollowTest, AnotherWayGoesOnByItselfAndIsPlannedWhenItComesAgain) {
  const StepFunction function = step_of([&](Block& block, Program& program, const at::Tensor& x) {
    at::Tensor hidden = block->body(x);
    if (program.way == 1) hidden = block->other(hidden).tanh();
    return Tensors{block->loss_of(hidden)};
  });
  CapturedStep step = followed(function);
  step.plan_ahead({.budget = "98%", .time_limit = Nanos(300'000'000)});
  std::vector<int64_t> left;
  for (int run = 0; run < 10; ++run) {
    SCOPED_TRACE(run);
    program_->way = run >= 3 && run % 2 == 1 ? 1 : 0;
    EXPECT_EQ(difference_of_run(step, function), "");
    const CapturedStepReport report = step.last_step();
    if (run > 0) {
      EXPECT_LE(report.measured_peak, report.budget);
    }
    left.push_back(report.left);
  }
  EXPECT_EQ(left, (std::vector<int64_t>{1, 1, 1, 2, 2, 3, 3, 3, 3, 3}));
  EXPECT_EQ(step.outcomes().size(), 2U);
  EXPECT_NE(step.last_step().last_difference.find("the recording calls"), std::string::npos);
}

TEST_F(FollowTest, AnExceptionLeavesAllAsItWas) {
  bool fails = false;
  const StepFunction function = step_of([&](Block& block, Program&, const at::Tensor& x) {
    const at::Tensor loss = block->loss_of(block->body(x));
    if (loss.item<double>() > -1 && fails) throw std::runtime_error("the program's own");
    return Tensors{loss};
  });
  CapturedStep step = followed(function);
  for (int run = 0; run < 2; ++run) bits_of([&](const Tensors& in) { return step.run_all(in); });
  block_->zero_grad();
  const Bits before = bits_now(stages(), {x_}, {});
  fails = true;
  EXPECT_THROW(step.run({x_}), std::runtime_error);
  EXPECT_EQ(difference(before, bits_now(stages(), {x_}, {})), "");
  fails = false;
  EXPECT_EQ(difference_of_run(step, function), "");
}

TEST_F(FollowTest, WithoutARecordingThereIsNoGraph) {
  CapturedStep step = followed(step_of([](Block& block, Program&, const at::Tensor& x) {
    return Tensors{block->loss_of(block->body(x))};
  }));
  EXPECT_THROW(step.graph(), InputError);
  EXPECT_THROW(step.plan(), InputError);
  EXPECT_THROW(step.use({}), InputError);
  EXPECT_TRUE(step.outcomes().empty());
}

}  // namespace
}  // namespace reprise::runtime::testing
