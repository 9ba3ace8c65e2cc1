// Checks what a step reads and advances beside gradients: buffers, random numbers, train flags,
// grad mode, autocast.
#include <ATen/autocast_mode.h>
#include <c10/core/InferenceMode.h>
#include <torch/optim/sgd.h>

#include "fixture.h"
#include "runtime/device/tensor_bytes.h"
#include "training/zoo.h"

namespace reprise::runtime::testing {

using internal::device::storage_bytes;

using training::make_model;
using training::Model;

namespace {

namespace nn = torch::nn;

using StateTest = RuntimeTest;

TEST_F(StateTest, DropoutAndBatchNormOverSeveralSteps) {
  expect_same_steps(conv_stages(), {images_});
}

TEST_F(StateTest, ParametersAreBitwiseEqualAfterFiveStepsOfMomentum) {
  const std::vector<Stage> plain = conv_stages();
  CountedStages counted(plain);
  std::vector<at::Tensor> parameters = parameters_of(plain);
  std::vector<at::Tensor> initial;
  for (const at::Tensor& p : parameters) initial.push_back(p.detach().clone());
  const StepState state(plain, {images_});
  auto train = [&](const std::function<Tensors(const Tensors&)>& forward) {
    torch::optim::SGD optimizer(parameters, torch::optim::SGDOptions(0.1).momentum(0.9));
    Bits last;
    for (int step = 0; step < 5; ++step) {
      optimizer.zero_grad();
      at::Tensor loss = mean_square(forward({images_}));
      loss.backward();
      optimizer.step();
      last = bits_now(plain, {images_}, loss);
    }
    at::NoGradGuard no_grad;
    state.restore();
    for (size_t i = 0; i < parameters.size(); ++i) parameters[i].copy_(initial[i]);
    return last;
  };
  const Bits expected = train([&](const Tensors& x) { return run_plain(plain, x); });

  auto remat = reprise::runtime::remat(counted.stages, {images_},
                                       {.loss = mean_square, .measure = without_options()});
  // The momentum comes after the first step and needs room then.
  remat->set_budget(smallest_budget(*remat) + Bytes(storage_bytes(parameters)));
  const Bits planned = train([&](const Tensors& x) {
    counted.reset();
    return remat->forward(x);
  });
  EXPECT_EQ(difference(expected, planned), "");
  EXPECT_GT(counted.total(), static_cast<int>(plain.size()));
  EXPECT_EQ(counted.calls(), planned_runs(*remat));
  EXPECT_EQ(remat->last_step().steps, 5);
}

// A stage may depend on a buffer that it changes: a replay must see what the first run saw.
struct Drifting : nn::Module {
  nn::Linear linear{64, 64};
  at::Tensor scale;
  Drifting() {
    register_module("linear", linear);
    scale = register_buffer("scale", at::ones({1}));
  }
  at::Tensor drift() {  // the scale before it changes
    const at::Tensor before = scale.detach().clone();
    at::NoGradGuard no_grad;
    scale.mul_(1.25);
    return before;
  }
};

Stage drifting(const std::string& name, const std::shared_ptr<Drifting>& module) {
  return {name, module, [module](const Tensors& x) {
            const at::Tensor scale = module->drift();
            return Tensors{(module->linear->forward(x.at(0)) * scale).tanh()};
          }};
}

TEST_F(StateTest, AStageWhoseOutputDependsOnABufferThatItAdvances) {
  std::vector<Stage> stages = dense_stages(4);
  stages[1] = drifting("drifting1", std::make_shared<Drifting>());
  stages[2] = drifting("drifting2", std::make_shared<Drifting>());
  expect_same_steps(stages, {rows_});
}

TEST_F(StateTest, ABufferThatSeveralStagesAdvanceOrOnlyRead) {
  const auto module = std::make_shared<Drifting>();
  std::vector<Stage> stages = dense_stages(7);
  stages[2] = drifting("early", module);
  stages[5] = drifting("late", module);
  for (size_t reader : {size_t{1}, size_t{3}}) {
    nn::Linear linear(64, 64);
    for (at::Tensor p : linear->parameters()) p.set_requires_grad(false);
    stages[reader] = {fmt::format("reader{}", reader), module,
                      [module, linear](const Tensors& x) mutable {
                        const at::Tensor scale = module->scale.clone();
                        return Tensors{(linear->forward(x.at(0)) * scale).tanh()};
                      }};
  }
  expect_same_steps(stages, {rows_});
}

TEST_F(StateTest, ABatchNormOfTwoStagesAndOneWithoutStatistics) {
  const nn::BatchNorm2d shared(8);
  const nn::BatchNorm2d without(nn::BatchNormOptions(8).track_running_stats(false));
  std::vector<Stage> stages = conv_stages();
  stages[1] = layer("bn1", shared);
  stages[5] = layer("bn2", shared);
  stages.insert(stages.begin() + 6, layer("without", without));
  expect_same_steps(stages, {images_});
}

// A plan holds one copy of all buffers, to undo a step and to start replays from, and room for
// those of the largest stage.
TEST_F(StateTest, TheCopiesOfBuffersThatAPlanHolds) {
  constexpr int64_t kBlock = 64;  // what the allocator gives for eight statistics, or a counter
  const std::vector<Stage> stages{layer("conv", conv(3)), layer("bn1", nn::BatchNorm2d(8)),
                                  layer("bn2", nn::BatchNorm2d(8)),
                                  layer("bn3", nn::BatchNorm2d(8))};
  const int64_t before = live();
  auto remat =
      reprise::runtime::remat(stages, {images_}, {.loss = mean_square, .measure = quick()});
  EXPECT_EQ(live() - before, (3 + 1) * 3 * kBlock);
}

TEST_F(StateTest, TheBytesOfAResNet50ThatTheDocumentNames) {
  const Model model = make_model({.model = "resnet50", .input = {2, 3, 32, 32}});
  const int64_t before = live();
  auto remat = reprise::runtime::remat(model.stages, {model.sample_input()}, {.measure = quick()});
  EXPECT_EQ(storage_bytes(buffers_of(model.stages)), 215'872);
  EXPECT_EQ(live() - before, 257'088);
}

// LibTorch's own kernels may differ in their first run in a process (docs/runtime.md, limits). This
// stage does, too.
TEST_F(StateTest, AStageWhoseVeryFirstRunDiffersIsTakenAsItIsFromThenOn) {
  nn::Linear first(64, 64), second(64, 4);
  const auto warm = std::make_shared<bool>(false);
  const std::vector<Stage> stages{{"first", first.ptr(),
                                   [first, warm](const Tensors& x) mutable {
                                     const double factor = std::exchange(*warm, true) ? 1.0 : 1.5;
                                     return Tensors{first->forward(x[0]).tanh() * factor};
                                   }},
                                  layer("second", second)};
  const StepState state(stages, {rows_});
  const auto planned =
      reprise::runtime::remat(stages, {rows_}, {.loss = mean_square, .measure = quick()});
  const Bits expected = plain_steps(stages, {rows_}, mean_square, 1)[0];
  state.restore();
  planned->set_budget(smallest_budget(*planned));
  EXPECT_EQ(difference(expected, planned_step(*planned, stages, {rows_}, mean_square)), "");
  EXPECT_EQ(planned->last_step().predicted_peak, planned->last_step().measured_peak);
}

TEST_F(StateTest, WhatCodeWritesIntoBuffersBetweenForwardAndBackwardStays) {
  const std::vector<Stage> plain = conv_stages();
  const StepState state(plain, {images_});
  auto step = [&](const std::function<Tensors(const Tensors&)>& forward) {
    at::Tensor loss = mean_square(forward({images_}));
    // Autograd also saves statistics, and would refuse a change that counts as a new version.
    for (const at::Tensor& buffer : buffers_of(plain)) buffer.variable_data().add_(1);
    loss.backward();
    return bits_now(plain, {images_}, loss);
  };
  const Bits expected = step([&](const Tensors& x) { return run_plain(plain, x); });
  state.restore();
  CountedStages counted(plain);
  auto remat =
      reprise::runtime::remat(counted.stages, {images_}, {.loss = mean_square, .measure = quick()});
  remat->set_budget(smallest_budget(*remat));
  remat->plan_for({images_});
  ASSERT_GT(planned_runs(*remat).at("bn1"), 1);
  EXPECT_EQ(difference(expected, step([&](const Tensors& x) { return remat->forward(x); })), "");
}

TEST_F(StateTest, EvalModeWithGradients) {
  std::vector<Stage> stages = conv_stages();
  for (const Stage& stage : stages) stage.module->eval();
  expect_same_steps(stages, {images_});
}

TEST_F(StateTest, SwitchingBetweenTrainAndEvalPlansForEach) {
  const std::vector<Stage> stages = conv_stages();
  const StepState state(stages, {images_});
  auto remat =
      reprise::runtime::remat(stages, {images_}, {.loss = mean_square, .measure = quick()});
  for (bool training : {true, false, true}) {
    remat->train(training);
    remat->set_budget({});
    remat->plan_for({images_});
    remat->set_budget(smallest_budget(*remat));
    state.restore();
    const Bits expected = plain_steps(stages, {images_}, mean_square, 1)[0];
    state.restore();
    EXPECT_EQ(difference(expected, planned_step(*remat, stages, {images_}, mean_square)), "");
  }
}

TEST_F(StateTest, WithoutGradientsNothingIsPlannedAndOutputsAreEqual) {
  const std::vector<Stage> plain = conv_stages();
  CountedStages counted(plain);
  Remat model(counted.stages, {.budget = Bytes(1)});  // no plan could fit
  const StepState state(plain, {images_});
  at::Tensor expected, no_grad_output;
  {
    at::NoGradGuard no_grad;
    expected = run_plain(plain, {images_})[0];
    state.restore();
    no_grad_output = model.forward(images_);
  }
  state.restore();
  c10::InferenceMode inference;
  const at::Tensor inference_output = model.forward(images_);
  EXPECT_TRUE(no_grad_output.equal(expected));
  EXPECT_TRUE(inference_output.equal(expected));
  EXPECT_EQ(counted.total(), 2 * static_cast<int>(plain.size()));
  EXPECT_EQ(model.last_step().plans, 0);
}

class Autocast {
 public:
  Autocast() { at::autocast::set_autocast_enabled(at::kCPU, true); }
  ~Autocast() {
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
  }
};

TEST_F(StateTest, AutocastIsReplayedWhenBackwardRunsOutsideIt) {
  const std::vector<Stage> plain = conv_stages();
  CountedStages counted(plain);
  const StepState state(plain, {images_});
  auto step = [&](const std::function<Tensors(const Tensors&)>& forward) {
    at::Tensor loss;
    {
      Autocast autocast;
      loss = mean_square(forward({images_}));
    }
    loss.backward();
    return bits_now(plain, {images_}, loss);
  };
  const Bits full = plain_steps(plain, {images_}, mean_square, 1)[0];
  state.restore();
  const Bits expected = step([&](const Tensors& x) { return run_plain(plain, x); });
  ASSERT_NE(difference(full, expected), "") << "autocast changed nothing";
  state.restore();
  Remat remat(counted.stages, {.loss = mean_square, .measure = quick()});
  {
    Autocast autocast;
    remat.plan_for({images_});
  }
  for (const Bytes budget : {smallest_budget(remat), largest_budget(remat)}) {
    remat.set_budget(budget);
    state.restore();
    const Bits planned = step([&](const Tensors& x) {
      counted.reset();
      return remat.forward(x);
    });
    EXPECT_EQ(difference(expected, planned), "");
    EXPECT_EQ(counted.calls(), planned_runs(remat));
  }
  // Without autocast the same object plans again, and is right.
  remat.set_budget({});
  state.restore();
  EXPECT_EQ(difference(full, planned_step(remat, plain, {images_}, mean_square)), "");
}

}  // namespace
}  // namespace reprise::runtime::testing
