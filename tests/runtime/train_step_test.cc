// train_step() takes the best mode that works, says why, and has plain training's bits in each.
#include "reprise/runtime/train_step.h"

#include <torch/optim/adam.h>

#include "online_training.h"
#include "reprise/model/errors.h"
#include "reprise/runtime/miss.h"
#include "reprise/runtime/online.h"
#include "runtime/device/compat.h"

namespace reprise::runtime::testing {
namespace {

// A StepSubject is a perceptron with dropout, and a step that may look at numbers.
struct StepSubject {
  explicit StepSubject(double reads = 0) : reads_(reads) {
    at::manual_seed(3);
    net = nn::Sequential(nn::Linear(32, 64), nn::Tanh(), nn::Dropout(0.2), nn::Linear(64, 64),
                         nn::Tanh(), nn::Linear(64, 8));
  }

  StepFunction function() {
    return [this](const Tensors& in) {
      at::Tensor x = in[0];
      if (reads_ == kScale) x = x / x.abs().max().item<double>();
      if (reads_ == kBranch && (x.sum() > 0).item<bool>()) x = x * 2;
      at::Tensor loss = net->forward(x).square().mean();
      loss.backward();
      return Tensors{loss};
    };
  }

  Bits bits(const at::Tensor& loss) const {
    return bits_of({.name = "step", .module = net.ptr(), .prepare = {}, .forward = {}}, loss);
  }

  static constexpr double kBranch = 1, kScale = 2;
  nn::Sequential net{nullptr};

 private:
  double reads_;
};

class TrainStepTest : public OnlineTest {
 protected:
  void SetUp() override {
    if (!internal::device::kStoragesTellTouches) GTEST_SKIP() << "online mode needs LibTorch 2.13";
    OnlineTest::SetUp();
  }

  // Runs the same calls plain and by `step`, whose modules are those of `mine`, and compares.
  static void expect_plain_bits(TrainStep& step, StepSubject& mine, StepSubject& plain,
                                const std::vector<Tensors>& calls) {
    const StepFunction expected = plain.function();
    for (size_t k = 0; k < calls.size(); ++k) {
      for (StepSubject* subject : {&mine, &plain}) subject->net->zero_grad();
      at::manual_seed(k);
      const Bits wanted = plain.bits(expected(calls[k])[0].detach());
      at::manual_seed(k);
      const Bits found = mine.bits(step.run(calls[k]));
      ASSERT_EQ(difference(wanted, found), "") << "call " << k << " in " << step.explain();
      ASSERT_LE(step.last_step().measured_peak, step.last_step().budget) << k;
    }
  }

  static Tensors rows(int64_t count, double sign = 1) {
    at::manual_seed(static_cast<uint64_t>(count));
    return {at::randn({count, 32}).abs() * sign};
  }
  static TrainStepOptions within(const StepSubject& subject, Budget budget) {
    return {.capture = {.modules = {subject.net.ptr()}, .measure = quick()},
            .plan = {.budget = budget, .time_limit = Nanos(200'000'000)}};
  }
};

TEST_F(TrainStepTest, FollowsTheStepIfNoModeIsAskedFor) {
  StepSubject mine, plain;
  TrainStep step = train_step(mine.function(), rows(512), within(mine, "80%"));
  EXPECT_EQ(step.mode(), StepMode::kFollow);
  EXPECT_THROW(step.last_step(), InputError);
  expect_plain_bits(step, mine, plain, {rows(512), rows(512, -1), rows(512), rows(512)});
  EXPECT_EQ(step.tried().size(), 1U);
  EXPECT_NE(step.explain().find("runs at every call"), std::string::npos) << step.explain();
  EXPECT_EQ(step.last_step().follow_steps, 4);
  EXPECT_EQ(step.last_step().left, 1);
  EXPECT_EQ(step.last_step().predicted_peak, step.last_step().measured_peak);
  EXPECT_NE(step.captured(), nullptr);
}

TEST_F(TrainStepTest, FollowsAStepThatReadsNumbers) {
  StepSubject mine(StepSubject::kScale), plain(StepSubject::kScale);
  TrainStep step = train_step(mine.function(), rows(512), within(mine, "85%"));
  expect_plain_bits(step, mine, plain, {rows(512), rows(512, -1), rows(512), rows(512, -1)});
  EXPECT_EQ(step.mode(), StepMode::kFollow);
  EXPECT_EQ(step.last_step().left, 1);
}

TEST_F(TrainStepTest, GraphModeRecordsTheStepIfItIsAskedFor) {
  StepSubject mine, plain;
  TrainStepOptions options = within(mine, "80%");
  options.mode = StepMode::kGraph;
  TrainStep step = train_step(mine.function(), rows(512), options);
  EXPECT_EQ(step.mode(), StepMode::kGraph);
  expect_plain_bits(step, mine, plain, {rows(512), rows(512, -1), rows(512)});
  EXPECT_NE(step.explain().find("a plan fits"), std::string::npos) << step.explain();
  EXPECT_EQ(step.last_step().graph_steps, 3);
  EXPECT_EQ(step.last_step().predicted_peak, step.last_step().measured_peak);
}

TEST_F(TrainStepTest, OnlineModeRunsTheStepIfItIsAskedFor) {
  StepSubject mine(StepSubject::kScale), plain(StepSubject::kScale);
  TrainStepOptions options = within(mine, "85%");
  options.mode = StepMode::kOnline;
  TrainStep step = train_step(mine.function(), rows(512), options);
  EXPECT_EQ(step.mode(), StepMode::kOnline);
  expect_plain_bits(step, mine, plain, {rows(512), rows(300), rows(512, -1)});
  EXPECT_EQ(step.last_step().online_steps, 3);
  EXPECT_EQ(step.last_step().predicted_peak, std::nullopt);
  EXPECT_EQ(step.captured(), nullptr);
}

TEST_F(TrainStepTest, OtherInputsRunWithoutAPlanAndAreRecorded) {
  StepSubject mine, plain;
  TrainStep step = train_step(mine.function(), rows(256), within(mine, "85%"));
  expect_plain_bits(step, mine, plain, {rows(256), rows(256), rows(128), rows(256), rows(128)});
  EXPECT_EQ(step.mode(), StepMode::kFollow);
  EXPECT_EQ(step.last_step().follow_steps, 5);
  EXPECT_GE(step.last_step().left, 2);
}

TEST_F(TrainStepTest, GradientsFromBeforeRunWithoutAPlan) {
  StepSubject mine, plain;
  // Gradients are added up over the calls, and halved together at each of them.
  const auto halving = [](StepSubject& subject) -> StepFunction {
    return [&subject, function = subject.function()](const Tensors& in) {
      Tensors result = function(in);
      at::NoGradGuard no_grad;
      for (const at::Tensor& one : subject.net->parameters()) one.grad().mul_(0.5);
      return result;
    };
  };
  TrainStep step = train_step(halving(mine), rows(512), within(mine, Budget()));
  const StepFunction expected = halving(plain);
  for (uint64_t k = 0; k < 3; ++k) {
    at::manual_seed(k);
    const Bits wanted = plain.bits(expected(rows(512))[0].detach());
    at::manual_seed(k);
    ASSERT_EQ(difference(wanted, mine.bits(step.run(rows(512)))), "") << k << step.explain();
  }
  EXPECT_EQ(step.last_step().follow_steps, 3);
  EXPECT_EQ(step.last_step().left, 3);
  EXPECT_NE(step.last_miss().find("gradients from before"), std::string::npos) << step.last_miss();
}

TEST_F(TrainStepTest, ARecordedStepThatReadsNumbersIsGuarded) {
  StepSubject mine(StepSubject::kBranch), plain(StepSubject::kBranch);
  TrainStepOptions options = within(mine, Budget());
  options.mode = StepMode::kGraph;
  TrainStep step = train_step(mine.function(), rows(64), options);
  EXPECT_EQ(step.mode(), StepMode::kGuardedGraph);
  EXPECT_NE(step.explain().find("compared at each call"), std::string::npos);
  expect_plain_bits(step, mine, plain, {rows(64), rows(64, -1), rows(64), rows(64, -1)});
  EXPECT_EQ(step.last_step().graph_steps, 4);
}

TEST_F(TrainStepTest, ABudgetThatNoModeFitsIsRefusedWithAllReasons) {
  StepSubject mine;
  const Tensors sample = rows(512);
  const Bits before = mine.bits(at::zeros({}));
  TrainStep step = train_step(mine.function(), sample, within(mine, Bytes(1000)));
  try {
    step.run(sample);
    FAIL() << "it found room";
  } catch (const BudgetError& error) {
    const std::string what = error.what();
    for (const char* mode : {"follow", "graph", "online"}) {
      EXPECT_NE(what.find(std::string("- ") + mode + ": no: "), std::string::npos) << what;
    }
  }
  EXPECT_EQ(difference(before, mine.bits(at::zeros({}))), "");
}

TEST_F(TrainStepTest, OneModeMayBeAskedFor) {
  StepSubject mine, plain, scaled(StepSubject::kScale);
  TrainStepOptions options = within(mine, "90%");
  options.mode = StepMode::kOnline;
  TrainStep step = train_step(mine.function(), rows(512), options);
  EXPECT_EQ(step.mode(), StepMode::kOnline);
  expect_plain_bits(step, mine, plain, {rows(512), rows(512)});
  options = within(scaled, "90%");
  options.mode = StepMode::kGraph;
  EXPECT_THROW(train_step(scaled.function(), rows(512), options), InputError);
}

TEST_F(TrainStepTest, TheOptimizerIsPartOfTheStepInEachMode) {
  for (const double reads : {0.0, StepSubject::kScale}) {
    StepSubject mine(reads), plain(reads);
    torch::optim::Adam adam(mine.net->parameters(), 1e-2), other(plain.net->parameters(), 1e-2);
    TrainStepOptions options = within(mine, Budget());
    options.capture.optimizer = per_parameter(adam);
    TrainStep step = train_step(mine.function(), rows(64), options);
    const StepFunction expected = plain.function();
    for (int call = 0; call < 5; ++call) {
      at::manual_seed(call);
      const at::Tensor wanted = expected(rows(64))[0].detach();
      other.step();
      other.zero_grad();
      at::manual_seed(call);
      const at::Tensor found = step.run(rows(64));
      EXPECT_EQ(difference(plain.bits(wanted), mine.bits(found)), "") << step.explain();
    }
  }
}

TEST_F(TrainStepTest, AnExceptionOfTheStepPassesUnchanged) {
  const StepFunction broken = [](const Tensors&) -> Tensors { throw std::domain_error("mine"); };
  TrainStep step = train_step(broken, rows(8));
  EXPECT_THROW(step.run(rows(8)), std::domain_error);
  EXPECT_EQ(step.mode(), StepMode::kFollow);
  TrainStepOptions options;
  options.mode = StepMode::kGraph;
  EXPECT_THROW(train_step(broken, rows(8), options), std::domain_error);
}

}  // namespace
}  // namespace reprise::runtime::testing
