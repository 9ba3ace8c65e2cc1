// Checks promises of the training loop: which mode it takes, and by which learning rates it trains.
#include "training/train.h"

#include <torch/optim/sgd.h>

#include <cmath>

#include "fixture.h"
#include "training/approximate.h"
#include "training/data.h"
#include "training/planned_steps.h"

namespace reprise::training {
namespace {

using runtime::Stage;
using runtime::Tensors;

class TrainTest : public runtime::testing::RuntimeTest {
 protected:
  // Asks for steps of a small network on random images.
  static TrainOptions small() {
    TrainOptions options;
    options.model = {.model = "mlp", .input = {16, 1, 5, 4}, .width = 8, .layers = 2};
    options.data = "synthetic";
    options.steps = 3;
    options.test_samples = 0;
    options.compare_steps = 1;
    options.time_limit = Nanos(100'000'000);
    return options;
  }

  // Returns the mode that `options` are trained in, and why it is a chain.
  static std::pair<TrainMode, std::string> mode_of(TrainOptions options) {
    std::pair<TrainMode, std::string> told{TrainMode::kAuto, {}};
    int times = 0;
    options.on_mode = [&](TrainMode mode, const std::string& why_chain) {
      told = {mode, why_chain};
      ++times;
    };
    EXPECT_EQ(train(options).mode, told.first);
    EXPECT_EQ(times, 1);
    return told;
  }
};

TEST_F(TrainTest, TakesGraphModeByItself) {
  EXPECT_EQ(mode_of(small()), std::pair(TrainMode::kGraph, std::string()));
}

TEST_F(TrainTest, TakesChainModeWhereTheOptionsAskForIt) {
  TrainOptions options = small();
  options.planner = "chain";
  EXPECT_EQ(mode_of(options).first, TrainMode::kChain);
  EXPECT_NE(mode_of(options).second.find("chain"), std::string::npos);
  options = small();
  options.check = false;
  EXPECT_EQ(mode_of(options).first, TrainMode::kChain);
  EXPECT_NE(mode_of(options).second.find("plain training's memory"), std::string::npos);
  options.consume_gradients = true;  // only graph mode can
  EXPECT_EQ(mode_of(options).first, TrainMode::kGraph);
  options = small();
  options.mode = TrainMode::kChain;
  EXPECT_EQ(mode_of(options), std::pair(TrainMode::kChain, std::string()));
}

TEST_F(TrainTest, TakesChainModeWhereAStepCannotBeCaptured) {
  Model model = make_model(small().model);
  const Stage first = model.stages.front();
  // The step does different things for different numbers in its input.
  model.stages.front().forward = [first](const Tensors& x) {
    return x.at(0).sum().item<float>() > 1e9F ? Tensors{x.at(0).flatten(1)} : first.forward(x);
  };
  const TrainOptions options = small();
  const auto data = open_dataset("synthetic", Split::kTrain, model);
  Batch batch = data->allocate();
  BatchStream(data, 1).next(batch);
  const auto steps = make_planned_steps(model, options, nullptr);
  ASSERT_TRUE(steps->prepare(batch, Budget()).plan);
  EXPECT_EQ(steps->mode(), TrainMode::kChain);
  EXPECT_NE(steps->why_chain().find("cannot be captured"), std::string::npos) << steps->why_chain();
  const at::Tensor loss = steps->run(batch);
  EXPECT_TRUE(loss.equal(model.loss(run_stages(model, batch.input), batch.target)));
}

TEST_F(TrainTest, ComparesOnePairAndTimesThePairsBehindIt) {
  TrainOptions options = small();
  options.compare_steps = 4;
  int pairs = 0;
  options.observer = [&](const Progress& progress) {
    if (progress.message == "plain training against the plan") ++pairs;
  };
  const TrainReport report = train(options);
  EXPECT_EQ(pairs, 5);
  EXPECT_EQ(report.timed_pairs, 4);
  EXPECT_EQ(report.gradients_equal, true);
  EXPECT_GT(report.plain_time, Nanos(0));
  EXPECT_GT(report.planned_time, Nanos(0));
}

// The steps of a plan that encodes what it keeps are compared twice: with the codecs, each with its
// bound, and without them, to the bit.
TEST_F(TrainTest, ComparesApproximateAlternativesWithTheirBounds) {
  TrainOptions options = small();
  options.model = {
      .model = "gpt", .input = {4, 64}, .width = 64, .layers = 3, .heads = 2, .vocabulary = 50};
  options.alternatives = {.only = {"compressed-8"}, .allow = Exactness::kApproximate};
  options.time_limit = Nanos(1'500'000'000);
  TrainReport report;
  // Random numbers take longer to draw again than a codec takes for them, so some budget needs one.
  for (const char* budget : {"45%", "40%", "35%", "30%"}) {
    options.budget = budget;
    report = train(options);
    if (!report.approximate.empty()) break;
  }
  ASSERT_EQ(report.approximate.size(), 1U) << "no plan has a codec: the test shows nothing";
  const ApproximateUse& use = report.approximate[0];
  EXPECT_EQ(use.alternative, "compressed-8");
  EXPECT_GT(use.values, 0);
  EXPECT_LT(use.kept * 3, use.plain);
  EXPECT_TRUE(use.within_bounds);
  EXPECT_GT(use.bound, 0);
  EXPECT_LE(use.error, use.bound);
  EXPECT_LE(use.bound, 1.0 / 255 + 1e-5);
  EXPECT_EQ(report.gradients_equal, true);
  EXPECT_EQ(report.approximate_forward_equal, true);
  EXPECT_LT(*report.approximate_difference, 0.1);
  EXPECT_FALSE(report.largest_difference.has_value());
  EXPECT_TRUE(report.peaks_equal);

  options.alternatives = {};
  EXPECT_TRUE(train(options).approximate.empty());
}

TEST(ApproximateUses, TheWorstValueSpeaksForItsAlternative) {
  const auto value = [](const char* alternative, double error, double bound, double largest) {
    runtime::ApproximateValue one;
    one.alternative = alternative;
    one.plain = Bytes(100);
    one.kept = Bytes(26);
    one.error = error;
    one.bound = bound;
    one.largest = largest;
    return one;
  };
  const std::vector<ApproximateUse> within =
      uses_of({value("a", 0.1, 0.2, 1), value("b", 3, 3, 30), value("a", 0.3, 0.4, 2),
               value("a", 0, 9, 1)});
  ASSERT_EQ(within.size(), 2U);
  EXPECT_EQ(within[0].values, 3);
  EXPECT_EQ(within[0].kept, Bytes(78));
  EXPECT_TRUE(within[0].within_bounds);
  EXPECT_EQ(within[0].error, 0.15);
  EXPECT_EQ(within[0].bound, 0.2);
  EXPECT_TRUE(within[1].within_bounds);
  const auto is_within = [&](const runtime::ApproximateValue& other) {
    return uses_of({value("a", 0.1, 0.2, 1), other, value("a", 0.1, 0.2, 1)})[0].within_bounds;
  };
  EXPECT_TRUE(is_within(value("a", 0.2, 0.2, 1)));
  EXPECT_FALSE(is_within(value("a", 0.21, 0.2, 1)));
  EXPECT_FALSE(is_within(value("a", std::nan(""), 0.2, 1)));
  EXPECT_FALSE(is_within(value("a", 0.1, std::nan(""), 1)));
  runtime::ApproximateValue never = value("a", 0, 0.2, 1);
  never.error.reset();
  EXPECT_FALSE(is_within(never)) << "a value that was not compared";
}

TEST_F(TrainTest, LinearScheduleGivesEachStepItsLearningRate) {
  TrainOptions options = small();
  options.learning_rate = 0.5;
  options.schedule = LearningRateSchedule::kLinear;
  options.steps = 4;
  at::manual_seed(options.seed);
  const Model model = make_model(options.model);
  const auto data = open_dataset("synthetic", Split::kTrain, model);
  BatchStream stream(data, options.seed);
  Batch batch = data->allocate();
  const std::shared_ptr<torch::nn::Module> module = model.module();
  double last = 0;
  for (const double rate : {0.5, 0.375, 0.25, 0.125}) {
    stream.next(batch);
    torch::optim::SGD optimizer(module->parameters(), torch::optim::SGDOptions(rate));
    optimizer.zero_grad();
    at::Tensor loss = model.loss(run_stages(model, batch.input), batch.target);
    loss.backward();
    optimizer.step();
    last = loss.item<double>();
  }
  EXPECT_EQ(train(options).last_loss, last);
  options.schedule = LearningRateSchedule::kConstant;
  EXPECT_NE(train(options).last_loss, last);
}

}  // namespace
}  // namespace reprise::training
