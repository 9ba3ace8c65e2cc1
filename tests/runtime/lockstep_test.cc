// Lockstep: the function of a captured step runs beside its recording and is compared with it. A
// function that still says the same is never refused, and leaves no trace. One that says something
// else is found, with what differs, and the run changes nothing.
#include "runtime/lockstep/lockstep.h"

#include <ATen/autocast_mode.h>
#include <torch/optim/sgd.h>

#include <thread>

#include "fixture.h"
#include "reprise/model/errors.h"
#include "reprise/runtime/capture.h"
#include "reprise/runtime/micro_batches.h"
#include "reprise/runtime/miss.h"
#include "runtime/lockstep/intercept.h"
#include "runtime/state/random_state.h"

namespace reprise::runtime::testing {
namespace {

using internal::lockstep::is_due;
using internal::state::RandomState;

// A model with what steps have: a norm with statistics, dropout, an operation in place, views.
struct BlockImpl : nn::Module {
  BlockImpl()
      : in(register_module("in", nn::Linear(16, 16))),
        norm(register_module("norm", nn::BatchNorm1d(16))),
        other(register_module("other", nn::Linear(16, 16))),
        out(register_module("out", nn::Linear(16, 4))) {}

  at::Tensor body(const at::Tensor& x) {
    return torch::dropout(norm(in(x)).relu_(), 0.2, is_training());
  }
  at::Tensor loss_of(const at::Tensor& x) {
    at::Tensor loss = out(x.view({-1, 4, 4}).transpose(1, 2).reshape({-1, 16})).square().mean();
    loss.backward();
    return loss;
  }

  nn::Linear in;
  nn::BatchNorm1d norm;
  nn::Linear other, out;
};
TORCH_MODULE(Block);

// The function of a test reads these numbers. A test changes them behind the capture.
struct Program {
  double scale = 1.0;
  int way = 0;
  int64_t rows = 8;
  int runs = 0;  // of the function
  std::function<void()> inside = [] {};
};

class LockstepTest : public RuntimeTest {
 protected:
  void SetUp() override {
    RuntimeTest::SetUp();
    x_ = at::randn({8, 16});
  }

  // Returns the step of a function of the block, the program and the input.
  template <class Body>
  StepFunction step_of(Body body) {
    return [body, block = block_, program = program_](const Tensors& in) mutable -> Tensors {
      ++program->runs;
      program->inside();
      return body(block, *program, in[0]);
    };
  }
  template <class Body>
  CapturedStep captured(Body body, CaptureOptions options = {}) {
    options.modules = {block_.ptr()};
    options.measure = quick();
    return CapturedStep(step_of(body), {x_}, options);
  }
  // Captures a step, runs it `runs` times, lets `change` change the program, and runs it until
  // lockstep finds that. Returns the message. Nothing but the runs that were right has an effect.
  template <class Body>
  std::string found(Body body, const std::function<void(Program&)>& change, int runs = 6) {
    CapturedStep step = captured(body);
    for (int run = 0; run < runs; ++run) step.run({x_});
    change(*program_);
    for (int run = runs + 1; run < 10 && runs >= 2; ++run) step.run({x_});
    const Bits before = bits_now(stages(), {x_});
    for (int attempt = 0; attempt < 2; ++attempt) {
      try {
        step.run({x_});
        ADD_FAILURE() << "nothing was found";
      } catch (const StepMiss& miss) {
        EXPECT_TRUE(miss.of_function());
        EXPECT_EQ(difference(before, bits_now(stages(), {x_})), "");
        EXPECT_EQ(step.last_step().compared, std::min(runs, 2));
        if (attempt == 1) return miss.what();
      }
    }
    return {};
  }
  std::vector<Stage> stages() { return {{"block", block_.ptr(), {}}}; }

  static at::Tensor scaled(Block& block, const Program& program, const at::Tensor& x) {
    return block->loss_of(block->body(x) * program.scale);
  }

  Block block_;
  std::shared_ptr<Program> program_ = std::make_shared<Program>();
  at::Tensor x_;
};

constexpr auto kScaled = [](Block& block, Program& program, const at::Tensor& x) -> Tensors {
  return {block->loss_of(block->body(x) * program.scale)};
};

bool has(const std::string& text, const std::string& words) {
  return text.find(words) != std::string::npos;
}

TEST(LockstepSchedule, TheFirstTwoRunsAndThePowersOfTen) {
  std::vector<int64_t> due;
  for (int64_t run = 1; run <= 100'000; ++run) {
    if (is_due(Lockstep::kSparse, run)) due.push_back(run);
    EXPECT_TRUE(is_due(Lockstep::kAlways, run));
    EXPECT_FALSE(is_due(Lockstep::kNever, run));
  }
  EXPECT_EQ(due, (std::vector<int64_t>{1, 2, 10, 100, 1'000, 10'000, 100'000}));
}

TEST_F(LockstepTest, LibTorchLeavesTheKeyFree) { EXPECT_TRUE(internal::lockstep::can_intercept()); }

// The function runs as often as it is compared, and never twice in one run.
TEST_F(LockstepTest, TheFunctionRunsOnceWhereItIsCompared) {
  for (const auto& [how, compared] : std::vector<std::pair<Lockstep, int>>{
           {Lockstep::kSparse, 3}, {Lockstep::kAlways, 12}, {Lockstep::kNever, 0}}) {
    CapturedStep step = captured(kScaled, {.lockstep = how});
    const int before = program_->runs;
    for (int run = 0; run < 12; ++run) step.run({x_});
    EXPECT_EQ(program_->runs - before, compared);
    EXPECT_EQ(step.last_step().compared, compared);
  }
}

TEST_F(LockstepTest, ANumberThatChangesIsFoundAtTheNextComparison) {
  const std::string message = found(kScaled, [](Program& p) { p.scale = 0.5; });
  EXPECT_TRUE(has(message, "gives 0.5 as other to mul")) << message;
  EXPECT_TRUE(has(message, "recording has 1")) << message;
  EXPECT_TRUE(has(message, "at run 10 after the capture")) << message;
  EXPECT_TRUE(has(message, "since run 3")) << message;
}

TEST_F(LockstepTest, AChangeRightBehindTheCaptureIsFoundAtTheFirstRun) {
  const std::string message = found(
      kScaled, [](Program& p) { p.scale = 0.5; }, 0);
  EXPECT_TRUE(has(message, "at run 1 after the capture")) << message;
  EXPECT_FALSE(has(message, "since run")) << message;
}

TEST_F(LockstepTest, WhatIsFoundIsCapturedAgain) {
  CapturedStep step = captured(kScaled, {.on_miss = OnMiss::kRecapture});
  step.run({x_});
  program_->scale = 0.25;
  block_->zero_grad();
  const RandomState start(at::kCPU);
  const at::Tensor loss = step.run({x_});
  const Bits replayed = bits_now(stages(), {x_}, loss);
  ASSERT_EQ(step.differences().size(), 1U);
  EXPECT_TRUE(has(step.differences()[0], "gives 0.25")) << step.differences()[0];
  // The statistics of the norm went on by two runs, so a plain step begins from there.
  start.restore();
  block_->zero_grad();
  const at::Tensor plain = scaled(block_, *program_, x_);
  EXPECT_TRUE(at::equal(plain, loss));
  Bits expected = bits_now(stages(), {x_}, plain), found_bits = replayed;
  for (const std::string name : {"buffer 0", "buffer 1", "buffer 2"}) {
    expected.erase(name);
    found_bits.erase(name);
  }
  EXPECT_EQ(difference(expected, found_bits), "");
  step.run({x_});
  EXPECT_EQ(step.differences().size(), 1U);
}

TEST_F(LockstepTest, AFunctionThatNeverSaysTheSameTwiceIsRefused) {
  const auto body = [](Block& block, Program& program, const at::Tensor& x) -> Tensors {
    return {block->loss_of(block->body(x) * (1 + program.runs / 4))};
  };
  CapturedStep step = captured(body, {.on_miss = OnMiss::kRecapture});
  ASSERT_EQ(program_->runs, 3);
  try {
    step.run({x_});
    FAIL() << "the same number was found twice";
  } catch (const InputError& error) {
    EXPECT_TRUE(has(error.what(), "something else right after a capture")) << error.what();
  }
}

TEST_F(LockstepTest, ALiteralThatChanges) {
  const auto body = [](Block& block, Program& program, const at::Tensor& x) -> Tensors {
    return {block->loss_of(block->body(x) * at::tensor({program.scale, 2.0})[0])};
  };
  const std::string message = found(body, [](Program& p) { p.scale = 0.5; });
  EXPECT_TRUE(has(message, "[0.5, 2]") && has(message, "[1, 2]")) << message;
}

TEST_F(LockstepTest, MemoryOfTheHostThatIsATensorAnewInEachRun) {
  static float numbers[] = {1, 2, 3, 4};
  const auto body = [](Block& block, Program& program, const at::Tensor& x) -> Tensors {
    const at::Tensor host = at::from_blob(numbers + program.way, {2}, at::kFloat);
    return {block->loss_of(block->body(x) * host[1])};
  };
  const std::string message = found(body, [](Program& p) { p.way = 2; });
  EXPECT_TRUE(has(message, "select")) << message;
}

TEST_F(LockstepTest, AnotherBranch) {
  const auto body = [](Block& block, Program& program, const at::Tensor& x) -> Tensors {
    const at::Tensor y = block->body(x);
    return {block->loss_of(program.way == 0 ? y.tanh() : y.sigmoid())};
  };
  const std::string message = found(body, [](Program& p) { p.way = 1; });
  EXPECT_TRUE(has(message, "the function calls sigmoid, and the recording calls tanh")) << message;
}

TEST_F(LockstepTest, AnotherParameterOfTheSameShape) {
  const auto body = [](Block& block, Program& program, const at::Tensor& x) -> Tensors {
    const at::Tensor y = block->body(x);
    return {block->loss_of(program.way == 0 ? block->in(y) : block->other(y))};
  };
  const std::string message = found(body, [](Program& p) { p.way = 1; });
  EXPECT_TRUE(has(message, "Float[16, 16]")) << message;
}

TEST_F(LockstepTest, AnotherResultOfTheSameShape) {
  const auto body = [](Block& block, Program& program, const at::Tensor& x) -> Tensors {
    const at::Tensor a = block->body(x), b = a.tanh();
    return {block->loss_of(b + (program.way == 0 ? a : b))};
  };
  const std::string message = found(body, [](Program& p) { p.way = 1; });
  EXPECT_TRUE(has(message, "the result of tanh")) << message;
}

TEST_F(LockstepTest, AnotherShape) {
  const auto body = [](Block& block, Program& program, const at::Tensor& x) -> Tensors {
    return {block->loss_of(block->body(x).slice(0, 0, program.rows))};
  };
  const std::string message = found(body, [](Program& p) { p.rows = 4; });
  EXPECT_TRUE(has(message, "gives 4 as end to slice")) << message;
}

TEST_F(LockstepTest, MoreAndFewerOperationsAtTheEnd) {
  const auto body = [](Block& block, Program& program, const at::Tensor& x) -> Tensors {
    const at::Tensor loss = block->loss_of(block->body(x));
    return {program.way == 0 ? loss : loss.detach().sqrt()};
  };
  std::string message = found(body, [](Program& p) { p.way = 1; });
  EXPECT_TRUE(has(message, "the function calls") && has(message, "the recording ends there"))
      << message;
  message = found(body, [](Program& p) { p.way = 0; });
  EXPECT_TRUE(has(message, "the function ends there, and the recording calls")) << message;
}

TEST_F(LockstepTest, WhatIsReturned) {
  const auto body = [](Block& block, Program& program, const at::Tensor& x) -> Tensors {
    const at::Tensor y = block->body(x), loss = block->loss_of(y);
    if (program.way == 2) return {loss};
    return {loss, program.way == 0 ? x : loss};
  };
  std::string message = found(body, [](Program& p) { p.way = 1; });
  EXPECT_TRUE(has(message, "as tensor 1")) << message;
  program_->way = 0;
  message = found(body, [](Program& p) { p.way = 2; });
  EXPECT_TRUE(has(message, "returns 1 tensors, and the recording 2")) << message;
}

TEST_F(LockstepTest, AGradientThatIsDropped) {
  const auto body = [](Block& block, Program& program, const at::Tensor& x) -> Tensors {
    const at::Tensor loss = block->loss_of(block->body(x));
    if (program.way == 1) block->out->weight.mutable_grad() = at::Tensor();
    return {loss};
  };
  const std::string message = found(body, [](Program& p) { p.way = 1; });
  EXPECT_TRUE(has(message, "as the gradient of a leaf Float[4, 16]")) << message;
}

TEST_F(LockstepTest, TheStateOfTheGeneratorIsSet) {
  const auto body = [](Block& block, Program& program, const at::Tensor& x) -> Tensors {
    const at::Tensor loss = block->loss_of(block->body(x));
    if (program.way == 1) at::manual_seed(7);
    return {loss};
  };
  const std::string message = found(body, [](Program& p) { p.way = 1; });
  EXPECT_TRUE(has(message, "random generator")) << message;
}

TEST_F(LockstepTest, AFunctionThatCatchesWhatItIsToldIsFoundAllTheSame) {
  const auto body = [](Block& block, Program& program, const at::Tensor& x) -> Tensors {
    at::Tensor y = block->body(x);
    try {
      y = y * program.scale;
    } catch (const std::exception&) {
      y = y * 1.0;
    }
    return {block->loss_of(y)};
  };
  EXPECT_TRUE(has(found(body, [](Program& p) { p.scale = 2; }), "gives 2 as other"));
}

TEST_F(LockstepTest, AnExceptionOfTheFunctionReachesTheCallerAndChangesNothing) {
  struct Boom {};
  CapturedStep step = captured(kScaled);
  step.run({x_});
  const Bits before = bits_now(stages(), {x_});
  program_->inside = [] { throw Boom(); };
  EXPECT_THROW(step.run({x_}), Boom);
  EXPECT_EQ(difference(before, bits_now(stages(), {x_})), "");
  program_->inside = [] {};
  step.run({x_});
  EXPECT_EQ(step.last_step().compared, 2);
}

TEST_F(LockstepTest, AnExceptionInTheBackwardPass) {
  struct Boom : std::runtime_error {
    using std::runtime_error::runtime_error;
  };
  const auto body = [](Block& block, Program& program, const at::Tensor& x) -> Tensors {
    const at::Tensor y = block->body(x);
    y.register_hook([&program](const at::Tensor&) {
      if (program.way == 1) throw Boom("in a hook");
    });
    return {block->loss_of(y)};
  };
  CapturedStep step = captured(body);
  step.run({x_});
  const Bits before = bits_now(stages(), {x_});
  program_->way = 1;
  EXPECT_THROW(step.run({x_}), Boom);
  EXPECT_EQ(difference(before, bits_now(stages(), {x_})), "");
  program_->way = 0;
  step.run({x_});
}

TEST_F(LockstepTest, CodeThatTakesAPointerIsRefused) {
  const auto body = [](Block& block, Program&, const at::Tensor& x) -> Tensors {
    const at::Tensor y = block->body(x);
    const float first = *y.const_data_ptr<float>();
    return {block->loss_of(first > 1e30f ? y.tanh() : y)};
  };
  CapturedStep step = captured(body);
  try {
    step.run({x_});
    FAIL() << "a pointer was taken";
  } catch (const InputError& error) {
    EXPECT_TRUE(has(error.what(), "looks into the bytes of a tensor")) << error.what();
  }
  CapturedStep alone = captured(body, {.lockstep = Lockstep::kNever});
  alone.run({x_});
}

// A tensor that the function keeps of the run has no bytes. A program that reads it is told why.
TEST_F(LockstepTest, ATensorThatTheFunctionKeepsSaysThatItHasNoBytes) {
  auto kept = std::make_shared<at::Tensor>();
  const auto body = [kept](Block& block, Program&, const at::Tensor& x) -> Tensors {
    const at::Tensor y = block->body(x);
    *kept = y.detach();
    return {block->loss_of(y)};
  };
  CapturedStep step = captured(body);
  step.run({x_});
  EXPECT_EQ(kept->sizes(), at::IntArrayRef({8, 16}));
  try {
    kept->sum();
    FAIL() << "memory that is not there was read";
  } catch (const c10::Error& error) {
    EXPECT_TRUE(has(error.what(), no_bytes_text())) << error.what();
  }
}

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
