// Tests lockstep beside steps of many kinds, in which nothing changes: it finds nothing and leaves
// no trace.
#include <ATen/autocast_mode.h>
#include <torch/optim/sgd.h>

#include <thread>

#include "lockstep_programs.h"
#include "reprise/runtime/micro_batches.h"
#include "runtime/state/random_state.h"

namespace reprise::runtime::testing {
namespace {

using internal::state::RandomState;

TEST_F(LockstepTest, GradientsThatAreThereStay) {
  CapturedStep step = captured(kScaled, {.lockstep = Lockstep::kAlways});
  Block plain;
  {
    const at::NoGradGuard no_grad;
    for (auto& named : plain->named_parameters()) {
      named.value().copy_(block_->named_parameters()[named.key()]);
    }
  }
  for (int run = 0; run < 4; ++run) {  // The gradients add up.
    at::manual_seed(run);
    step.run({x_});
    at::manual_seed(run);
    scaled(plain, *program_, x_);
    for (auto& named : plain->named_parameters()) {
      const at::Tensor grad = block_->named_parameters()[named.key()].grad();
      ASSERT_EQ(grad.defined(), named.value().grad().defined());
      if (grad.defined()) {
        EXPECT_TRUE(at::equal(grad, named.value().grad())) << named.key();
      }
    }
  }
}

TEST_F(LockstepTest, UnderAutocast) {
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::increment_nesting();
  {
    CapturedStep step = captured(kScaled, {.lockstep = Lockstep::kAlways});
    const RandomState start(at::kCPU);
    block_->zero_grad();
    const at::Tensor loss = step.run({x_});
    EXPECT_EQ(step.last_step().compared, 1);
    start.restore();
    // No weight that lockstep has cast is left in autocast's cache.
    const at::Tensor plain = scaled(block_, *program_, x_);
    EXPECT_TRUE(at::equal(loss, plain));
  }
  at::autocast::decrement_nesting();
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(at::kCPU, false);
}

// The numbers that the step reads are those of this run, so the function goes the way of the run.
TEST_F(LockstepTest, HostReadsGetTheNumbersOfTheRun) {
  auto extra = std::make_shared<int>(0);
  const auto body = [extra](Block& block, Program&, const at::Tensor& x) -> Tensors {
    at::Tensor y = block->body(x);
    if ((at::rand({}) < 0.5).item<bool>()) {
      ++*extra;
      y = block->other(y);
    }
    return {block->loss_of(y)};
  };
  CapturedStep step =
      captured(body, {.on_miss = OnMiss::kRecapture, .lockstep = Lockstep::kAlways});
  for (const int seed : {0, 1}) {  // Capture both outcomes.
    for (int run = 0; run < 8; ++run) {
      at::manual_seed(100 * seed + run);
      step.run({x_});
    }
  }
  ASSERT_EQ(step.outcomes().size(), 2U);
  int expected = 0;
  *extra = 0;
  for (int run = 0; run < 20; ++run) {
    at::manual_seed(run);
    torch::dropout(block_->in(x_).detach(), 0.2, true);
    expected += static_cast<int>((at::rand({}) < 0.5).item<bool>());
    at::manual_seed(run);
    step.run({x_});
  }
  EXPECT_GT(expected, 3);
  EXPECT_LT(expected, 17);
  EXPECT_EQ(*extra, expected);  // as in plain training, once a run
  EXPECT_TRUE(step.differences().empty());
}

TEST_F(LockstepTest, ADifferenceBehindAHostReadTakesTheRunBack) {
  const auto body = [](Block& block, Program& program, const at::Tensor& x) -> Tensors {
    at::Tensor y = block->body(x);
    if ((x.sum() > -1e9).item<bool>()) y = y * program.scale;
    return {block->loss_of(y)};
  };
  const std::string message = found(body, [](Program& p) { p.scale = 0.5; });
  EXPECT_TRUE(has(message, "gives 0.5 as other")) << message;
}

TEST_F(LockstepTest, AnOptimizerInTheStep) {
  torch::optim::SGD sgd(block_->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  CapturedStep step = captured(
      [](Block& block, Program& program, const at::Tensor& x) -> Tensors {
        return {block->loss_of(block->other(block->body(x)) * program.scale)};
      },
      {.lockstep = Lockstep::kAlways, .optimizer = per_parameter(sgd)});
  for (int run = 0; run < 4; ++run) step.run({x_});
  EXPECT_EQ(step.last_step().compared, 4);
  program_->scale = 3;
  const Bits before = bits_now(stages(), {x_});
  EXPECT_THROW(step.run({x_}), StepMiss);  // No parameter was updated.
  EXPECT_EQ(difference(before, bits_now(stages(), {x_})), "");
}

TEST_F(LockstepTest, MicroBatches) {
  auto part = [block = block_, program = program_](const Tensors& in, double share) mutable {
    const at::Tensor loss = block->out(block->body(in[0])).square().mean() * share * program->scale;
    loss.backward();
    return Tensors{loss.detach()};
  };
  MicroBatches parts = micro_batches(
      part, {x_}, {.parts = {2}, .capture = {.lockstep = Lockstep::kAlways, .measure = quick()}});
  for (int run = 0; run < 3; ++run) {
    block_->zero_grad();
    parts.step.run({x_});
  }
  EXPECT_EQ(parts.step.last_step().compared, 3);
  program_->scale = 2;
  block_->zero_grad();
  EXPECT_THROW(parts.step.run({x_}), StepMiss);
}

TEST_F(LockstepTest, AFunctionThatCallsAnotherCapturedStepIsNotCompared) {
  CapturedStep inner = captured(kScaled, {.lockstep = Lockstep::kAlways});
  CapturedStep outer = captured(kScaled, {.lockstep = Lockstep::kAlways});
  bool called = false;
  program_->inside = [&] {
    if (!std::exchange(called, true)) inner.run({x_});
  };
  EXPECT_ANY_THROW(outer.run({x_}));
  outer.run({x_});
}

// Inputs may be other parts of one tensor, and the data of a parameter may be replaced.
TEST_F(LockstepTest, InputsAndParametersThatLieElsewhere) {
  const at::Tensor all = at::randn({64, 16});
  CapturedStep step(step_of(kScaled), {all.narrow(0, 0, 8)},
                    {.lockstep = Lockstep::kAlways, .measure = quick()});
  for (int run = 0; run < 8; ++run) step.run({all.narrow(0, 8 * run, 8)});
  block_->in->weight.set_data(at::randn({16, 16}));
  step.run({all.narrow(0, 0, 8)});
  EXPECT_EQ(step.last_step().compared, 9);
}

TEST_F(LockstepTest, AnInputThatGetsAGradient) {
  const at::Tensor x = at::randn({8, 16}).requires_grad_();
  CapturedStep step(step_of(kScaled), {x}, {.lockstep = Lockstep::kAlways, .measure = quick()});
  for (int run = 0; run < 3; ++run) {
    const at::Tensor next = at::randn({8, 16}).requires_grad_();
    step.run({next});
    EXPECT_TRUE(next.grad().defined());
  }
  EXPECT_EQ(step.last_step().compared, 3);
}

TEST_F(LockstepTest, SeveralStepsOnTheirOwnThreads) {
  std::vector<std::unique_ptr<CapturedStep>> steps;
  std::vector<Block> blocks(3);
  for (Block& block : blocks) {
    block->eval();  // All threads draw from one generator.
    auto step = [block](const Tensors& in) mutable {
      return Tensors{block->loss_of(block->body(in[0]))};
    };
    steps.push_back(std::make_unique<CapturedStep>(
        step, Tensors{x_}, CaptureOptions{.lockstep = Lockstep::kAlways, .measure = quick()}));
    steps.back()->plan();
  }
  std::vector<std::thread> threads;
  for (auto& step : steps) {
    threads.emplace_back([&] {
      for (int run = 0; run < 20; ++run) step->run({x_});
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (auto& step : steps) EXPECT_EQ(step->last_step().compared, 20);
}

}  // namespace
}  // namespace reprise::runtime::testing
