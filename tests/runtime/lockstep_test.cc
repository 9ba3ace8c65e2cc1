// Tests lockstep: the function of a captured step runs beside its recording and is compared with
// it. A function that still says the same is never refused, and leaves no trace. One that says
// something else is found, with what differs, and the run changes nothing.

#include "runtime/lockstep/lockstep.h"

#include "lockstep_programs.h"
#include "reprise/model/errors.h"
#include "runtime/lockstep/intercept.h"
#include "runtime/state/random_state.h"

namespace reprise::runtime::testing {
namespace {

using internal::lockstep::is_due;
using internal::state::RandomState;

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

}  // namespace
}  // namespace reprise::runtime::testing
