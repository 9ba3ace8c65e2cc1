// Checks promises of the training loop: which mode it takes, and by which learning rates it trains.
#include "training/train.h"

#include <torch/optim/sgd.h>

#include "fixture.h"
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
