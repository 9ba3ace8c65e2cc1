// What a planned model promises beyond equal bits on the zoo: every kind of stage, every state that a step
// touches, every mode of autograd. All at budgets where stages really run again.
#include <ATen/autocast_mode.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include "runtime/stage_runner.h"
#include "tight_step.h"

namespace reprise::runtime {
namespace {

namespace nn = torch::nn;
using testing::Bits;
using testing::bits_now;
using testing::CountedStages;
using testing::difference;
using testing::drop_gradients;
using testing::expect_same_steps;
using testing::largest_budget;
using testing::layer;
using testing::live;
using testing::mean_square;
using testing::plain_steps;
using testing::planned_runs;
using testing::planned_step;
using testing::quick;
using testing::smallest_budget;
using testing::StepState;

nn::Conv2d conv(int64_t from, int64_t to) {
  return nn::Conv2d(nn::Conv2dOptions(from, to, 3).padding(1));
}

// Linear stages with an activation function each.
Stage dense(const std::string& name, nn::Linear linear) {
  return {name, linear.ptr(),
          [linear](const Tensors& x) mutable { return Tensors{linear->forward(x.at(0)).tanh()}; }};
}

std::vector<Stage> dense_stages(int count, int64_t width = 64) {
  std::vector<Stage> stages;
  for (int i = 0; i < count; ++i) {
    stages.push_back(dense(fmt::format("dense{}", i), nn::Linear(width, width)));
  }
  return stages;
}

// Convolutions, batch norm, dropout, in-place activations, pooling, a view: what training code has.
std::vector<Stage> conv_stages() {
  return {layer("conv1", conv(3, 8)),
          layer("bn1", nn::BatchNorm2d(8)),
          layer("relu1", nn::ReLU(nn::ReLUOptions(true))),
          layer("drop1", nn::Dropout(0.3)),
          layer("conv2", conv(8, 8)),
          layer("bn2", nn::BatchNorm2d(8)),
          layer("relu2", nn::ReLU(nn::ReLUOptions(true))),
          layer("drop2", nn::Dropout(0.3)),
          layer("pool", nn::MaxPool2d(2)),
          layer("flatten", nn::Flatten()),
          layer("linear", nn::Linear(8 * 8 * 8, 10))};
}

class Behaviour : public ::testing::Test {
 protected:
  void SetUp() override {
    install_cpu_allocator();
    at::manual_seed(11);
  }
  void TearDown() override { EXPECT_EQ(cpu_limit(), std::nullopt) << "a limit was left behind"; }

  at::Tensor rows_ = at::randn({256, 64});
  at::Tensor images_ = at::randn({8, 3, 16, 16});
};

// --- State that a step advances

TEST_F(Behaviour, DropoutAndBatchNormOverSeveralSteps) {
  expect_same_steps(conv_stages(), {images_});
}

TEST_F(Behaviour, ParametersAreBitwiseEqualAfterFiveStepsOfMomentum) {
  const std::vector<Stage> plain = conv_stages();
  CountedStages counted(plain);
  std::vector<at::Tensor> parameters = testing::parameters_of(plain);
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
  const Bits expected = train([&](const Tensors& x) { return testing::run_plain(plain, x); });

  auto remat =
      reprise::runtime::remat(counted.stages, {images_}, {.loss = mean_square, .measure = quick()});
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
TEST_F(Behaviour, AStageWhoseOutputDependsOnABufferThatItAdvances) {
  struct Drifting : nn::Module {
    nn::Linear linear{64, 64};
    at::Tensor scale;
    Drifting() {
      register_module("linear", linear);
      scale = register_buffer("scale", at::ones({1}));
    }
  };
  std::vector<Stage> stages = dense_stages(4);
  for (int i = 1; i < 3; ++i) {
    auto module = std::make_shared<Drifting>();
    stages[static_cast<size_t>(i)] = {
        fmt::format("drifting{}", i), module, [module](const Tensors& x) {
          const at::Tensor now = module->scale.detach().clone();
          {
            at::NoGradGuard no_grad;
            module->scale.mul_(1.25);
          }
          return Tensors{(module->linear->forward(x.at(0)) * now).tanh()};
        }};
  }
  expect_same_steps(stages, {rows_});
}

// --- Gradients

TEST_F(Behaviour, GradientsAccumulateOverThreeBackwardPasses) {
  const std::vector<Stage> plain = dense_stages(6);
  CountedStages counted(plain);
  const StepState state(plain, {rows_});
  auto accumulate = [&](const std::function<Tensors(const Tensors&)>& forward) {
    auto backward = [&] {  // the output is gone when it runs, as in the plan
      at::Tensor loss = mean_square(forward({rows_}));
      loss.backward();
    };
    for (int k = 0; k < 3; ++k) backward();
    Bits bits = bits_now(plain, {rows_});
    // The same with gradients that are zero instead of absent.
    for (const at::Tensor& p : testing::parameters_of(plain)) p.mutable_grad().zero_();
    backward();
    for (auto& [name, bytes] : bits_now(plain, {rows_})) bits["zeroed " + name] = bytes;
    return bits;
  };
  const Bits expected = accumulate([&](const Tensors& x) { return testing::run_plain(plain, x); });
  state.restore();
  auto remat =
      reprise::runtime::remat(counted.stages, {rows_}, {.loss = mean_square, .measure = quick()});
  remat->set_budget(smallest_budget(*remat) + Bytes(6 * (64 * 64 + 64) * 4));
  const Bits planned = accumulate([&](const Tensors& x) {
    counted.reset();
    return remat->forward(x);
  });
  EXPECT_EQ(difference(expected, planned), "");
  EXPECT_GT(counted.total(), 6);
  EXPECT_LE(remat->last_step().measured_peak, remat->last_step().budget);
}

TEST_F(Behaviour, AParameterOfSeveralStagesAndTwiceInOneStage) {
  nn::Linear shared(64, 64);
  std::vector<Stage> stages = dense_stages(2);
  stages.push_back(dense("first", shared));
  stages.push_back({"twice", shared.ptr(), [shared](const Tensors& x) mutable {
                      return Tensors{shared->forward(shared->forward(x[0]).tanh()) + x[0]};
                    }});
  stages.push_back(dense("other", nn::Linear(64, 64)));
  stages.push_back(dense("last", shared));
  expect_same_steps(stages, {rows_});
}

TEST_F(Behaviour, TiedWeights) {
  nn::Embedding embedding(96, 64);
  std::vector<Stage> stages{layer("embedding", embedding)};
  for (Stage& stage : dense_stages(4)) stages.push_back(stage);
  stages.push_back({"head", embedding.ptr(), [embedding](const Tensors& x) {
                      return Tensors{at::matmul(x[0], embedding->weight.t())};
                    }});
  expect_same_steps(stages, {at::randint(96, {128})});
}

TEST_F(Behaviour, FrozenStagesAtTheStartAndInTheMiddle) {
  for (const std::vector<size_t>& frozen : {std::vector<size_t>{0, 1, 2}, {2, 3}, {5}}) {
    SCOPED_TRACE(frozen.front());
    std::vector<Stage> stages = dense_stages(6);
    for (size_t i : frozen) {
      for (at::Tensor p : stages[i].module->parameters()) p.set_requires_grad(false);
    }
    expect_same_steps(stages, {rows_});
  }
}

TEST_F(Behaviour, TheInputsGradientAndAWhollyFrozenModel) {
  const at::Tensor x = rows_.clone().set_requires_grad(true);
  std::vector<Stage> stages = dense_stages(6);
  expect_same_steps(stages, {x});
  for (const Stage& stage : stages) {
    for (at::Tensor p : stage.module->parameters()) p.set_requires_grad(false);
  }
  expect_same_steps(stages, {x});
}

TEST_F(Behaviour, GradientsFlowToWhatMadeTheInput) {
  const std::vector<Stage> stages = dense_stages(6);
  const at::Tensor leaf = at::randn({256, 64}).set_requires_grad(true);
  mean_square(testing::run_plain(stages, {leaf * 2})).backward();
  const Bits expected = bits_now(stages, {leaf});
  drop_gradients(stages, {leaf});
  auto remat =
      reprise::runtime::remat(stages, {leaf * 2}, {.loss = mean_square, .measure = quick()});
  remat->set_budget(smallest_budget(*remat));
  at::Tensor loss = mean_square({remat->forward(leaf * 2)});
  loss.backward();
  EXPECT_EQ(difference(expected, bits_now(stages, {leaf})), "");
}

// --- What goes between stages

TEST_F(Behaviour, TuplesWithIntegersAndConstantsAmongThem) {
  nn::Linear first(64, 64), second(64, 64), third(64, 64), fourth(64, 64);
  std::vector<Stage> stages{{"split", first.ptr(),
                             [first](const Tensors& x) mutable {
                               const at::Tensor y = first->forward(x[0]).tanh();
                               return Tensors{y, y.detach().argmax(1), y.detach().abs()};
                             }},
                            {"mix", second.ptr(),
                             [second](const Tensors& x) mutable {
                               return Tensors{second->forward(x[0]).tanh() + x[1].unsqueeze(1),
                                              x[1], x[2] * 2, x[0].sin()};
                             }},
                            {"more", third.ptr(),
                             [third](const Tensors& x) mutable {
                               return Tensors{third->forward(x[0] + x[2]).tanh(), x[3].exp(), x[1]};
                             }},
                            {"end", fourth.ptr(), [fourth](const Tensors& x) mutable {
                               return Tensors{fourth->forward(x[0] * x[1]).index_select(0, x[2])};
                             }}};
  expect_same_steps(stages, {rows_});
}

TEST_F(Behaviour, SeveralInputsAndOutputs) {
  nn::Linear first(64, 64);
  std::vector<Stage> stages{{"join", first.ptr(), [first](const Tensors& x) mutable {
                               return Tensors{first->forward(x[0]).tanh() * x[1], x[1].sin()};
                             }}};
  for (int i = 0; i < 4; ++i) {
    nn::Linear linear(64, 64);
    stages.push_back({fmt::format("pair{}", i), linear.ptr(), [linear](const Tensors& x) mutable {
                        return Tensors{linear->forward(x[0]).tanh(), x[1].sin() + x[0]};
                      }});
  }
  const at::Tensor gate = at::randn({256, 64}).set_requires_grad(true);
  expect_same_steps(stages, {rows_, gate});
}

TEST_F(Behaviour, AnInputReturnedUnchangedBesideANewTensor) {
  std::vector<Stage> stages = dense_stages(2);
  for (int i = 0; i < 3; ++i) {
    nn::Linear linear(64, 64);
    stages.push_back({fmt::format("beside{}", i), linear.ptr(), [linear](const Tensors& x) mutable {
                        Tensors y = x;  // all that came, and one more
                        y.push_back(linear->forward(x.back()).tanh());
                        return y;
                      }});
  }
  stages.push_back({"sum", nullptr, [](const Tensors& x) {
                      at::Tensor sum = x[0].sin();
                      for (size_t e = 1; e < x.size(); ++e) sum = sum + x[e].sin();
                      return Tensors{sum};
                    }});
  expect_same_steps(stages, {rows_});
  expect_same_steps(stages, {rows_.clone().set_requires_grad(true)});
}

TEST_F(Behaviour, StagesThatOnlyReturnViewsFirstMiddleAndLast) {
  std::vector<Stage> stages = dense_stages(5);
  nn::Flatten flatten;
  stages.insert(stages.begin() + 3, layer("identity", nn::Identity()));
  stages.insert(stages.begin() + 3, layer("flatten", flatten));
  stages.insert(stages.begin(), layer("identity0", nn::Identity()));
  stages.insert(stages.begin(), layer("flatten0", nn::Flatten()));
  stages.push_back(layer("last", nn::Flatten()));
  expect_same_steps(stages, {rows_.view({256, 8, 8})});
  expect_same_steps(stages, {at::randn({256, 8, 8}).set_requires_grad(true)});
}

TEST_F(Behaviour, PartsOfOneTensorAsATuple) {
  std::vector<Stage> stages = dense_stages(4);
  stages.push_back({"chunk", nullptr, [](const Tensors& x) { return x[0].chunk(2, 1); }});
  nn::Linear linear(32, 64);
  stages.push_back({"both", linear.ptr(), [linear](const Tensors& x) mutable {
                      return Tensors{linear->forward(x[0].tanh()) * linear->forward(x[1])};
                    }});
  for (Stage& stage : dense_stages(2)) stages.push_back(stage);
  stages[6].name = "a", stages[7].name = "b";
  expect_same_steps(stages, {rows_});
}

TEST_F(Behaviour, AFirstOperationInPlace) {
  const Stage relu = layer("relu", nn::ReLU(nn::ReLUOptions(true)));
  // On the first stage plain training changes the caller's tensor; a planned step works on a copy.
  std::vector<Stage> stages = conv_stages();
  stages.insert(stages.begin(), relu);
  const at::Tensor kept = images_.clone();
  const StepState state(stages, {images_});
  auto remat =
      reprise::runtime::remat(stages, {images_}, {.loss = mean_square, .measure = quick()});
  remat->set_budget(smallest_budget(*remat));
  const Bits planned = planned_step(*remat, stages, {images_}, mean_square);
  EXPECT_TRUE(images_.equal(kept)) << "the caller's input was changed";
  state.restore();
  const Tensors copy{images_.clone()};
  EXPECT_EQ(difference(plain_steps(stages, copy, mean_square, 1)[0], planned), "");

  // Stages that change their input in place and work on.
  std::vector<Stage> mixed{layer("linear0", nn::Linear(64, 64))};
  for (int i = 1; i < 6; ++i) {
    nn::Linear linear(64, 64);
    mixed.push_back({fmt::format("linear{}", i), linear.ptr(), [linear](const Tensors& x) mutable {
                       x[0].mul_(0.5).add_(1);
                       return Tensors{linear->forward(x[0].tanh())};
                     }});
  }
  expect_same_steps(mixed, {rows_});
}

// --- Modes

TEST_F(Behaviour, EvalModeWithGradients) {
  std::vector<Stage> stages = conv_stages();
  for (const Stage& stage : stages) stage.module->eval();
  expect_same_steps(stages, {images_});
}

TEST_F(Behaviour, SwitchingBetweenTrainAndEvalPlansForEach) {
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

TEST_F(Behaviour, WithoutGradientsNothingIsPlannedAndOutputsAreEqual) {
  const std::vector<Stage> plain = conv_stages();
  CountedStages counted(plain);
  Remat model(counted.stages, {.budget = Bytes(1)});  // no plan could fit
  const StepState state(plain, {images_});
  at::Tensor expected, no_grad_output;
  {
    at::NoGradGuard no_grad;
    expected = testing::run_plain(plain, {images_})[0];
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

TEST_F(Behaviour, AutocastIsReplayedWhenBackwardRunsOutsideIt) {
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
  const Bits expected = step([&](const Tensors& x) { return testing::run_plain(plain, x); });
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

TEST_F(Behaviour, HooksFireOnceWithTheFullGradient) {
  struct Counter : torch::autograd::PostAccumulateGradHook {
    int* fired;
    explicit Counter(int* f) : fired(f) {}
    void operator()(const at::Tensor& tensor) override { *fired += tensor.grad().defined(); }
  };
  nn::Linear shared(64, 64);
  std::vector<Stage> stages = dense_stages(4);
  stages.insert(stages.begin() + 2, dense("shared_early", shared));
  stages.push_back(dense("shared_late", shared));
  const at::Tensor x = rows_.clone().set_requires_grad(true);
  const Bits expected = plain_steps(stages, {x}, mean_square, 1)[0];
  drop_gradients(stages, {x});
  auto remat = reprise::runtime::remat(stages, {x}, {.loss = mean_square, .measure = quick()});
  remat->set_budget(smallest_budget(*remat));

  std::vector<at::Tensor> watched = testing::parameters_of(stages);
  watched.push_back(x);
  std::vector<int> before(watched.size()), after(watched.size());
  for (size_t i = 0; i < watched.size(); ++i) {
    watched[i].register_hook([&before, i](const at::Tensor& g) {
      ++before[i];
      return g * 2;  // exact in binary
    });
    torch::autograd::impl::set_post_acc_grad_hooks(watched[i],
                                                   std::make_unique<Counter>(&after[i]));
  }
  remat->set_budget(largest_budget(*remat) + Bytes(10'000'000));  // the hooks' own tensors
  for (int k = 0; k < 2; ++k) {
    drop_gradients(stages, {x});
    mean_square({remat->forward(x)}).backward();
    EXPECT_EQ(before, std::vector<int>(watched.size(), k + 1));
    EXPECT_EQ(after, std::vector<int>(watched.size(), k + 1));
    for (at::Tensor& tensor : watched) tensor.mutable_grad().mul_(0.5);
    Bits halved = bits_now(stages, {x});
    halved["loss"] = expected.at("loss");
    EXPECT_EQ(difference(expected, halved), "");
  }
}

// --- Several steps, several models

TEST_F(Behaviour, TwoForwardPassesBeforeTheirBackwardPassesInEitherOrder) {
  const std::vector<Stage> plain = conv_stages();
  CountedStages counted(plain);
  const Tensors first{images_}, second{at::randn({8, 3, 16, 16})};
  const StepState state(plain, first);
  auto two = [&](const std::function<Tensors(const Tensors&)>& forward, bool swapped) {
    drop_gradients(plain, {});
    at::Tensor a = mean_square(forward(first));
    at::Tensor b = mean_square(forward(second));
    (swapped ? b : a).backward();
    Bits bits;
    for (auto& [name, bytes] : bits_now(plain, first)) bits["between " + name] = bytes;
    (swapped ? a : b).backward();
    bits.merge(bits_now(plain, first, a + b));
    return bits;
  };
  auto remat =
      reprise::runtime::remat(counted.stages, first, {.loss = mean_square, .measure = quick()});
  // The first step may keep everything beside which the second one just fits.
  const int64_t level = (remat->chain().fixed + remat->chain().input.bytes).count();
  const int64_t gradients = storage_bytes(testing::parameters_of(plain)) + 256;  // and two losses
  remat->set_budget(
      Bytes(largest_budget(*remat).count() + smallest_budget(*remat).count() - level + gradients));
  for (bool swapped : {false, true}) {
    SCOPED_TRACE(swapped);
    state.restore();
    const Bits expected =
        two([&](const Tensors& x) { return testing::run_plain(plain, x); }, swapped);
    state.restore();
    counted.reset();
    const Bits planned = two([&](const Tensors& x) { return remat->forward(x); }, swapped);
    EXPECT_EQ(difference(expected, planned), "");
    EXPECT_GT(counted.total(), 2 * static_cast<int>(plain.size()));
    EXPECT_EQ(cpu_limit(), std::nullopt);
  }
}

TEST_F(Behaviour, AForwardPassThatIsDroppedGivesEverythingBack) {
  const std::vector<Stage> stages = conv_stages();
  const StepState state(stages, {images_});
  plain_steps(stages, {images_}, mean_square, 1);
  state.restore();
  const Bits expected = plain_steps(stages, {images_}, mean_square, 1)[0];
  state.restore();
  auto remat =
      reprise::runtime::remat(stages, {images_}, {.loss = mean_square, .measure = quick()});
  remat->set_budget(smallest_budget(*remat));
  const int64_t before = live();
  {
    const at::Tensor output = remat->forward(images_);
    EXPECT_NE(cpu_limit(), std::nullopt);
    EXPECT_GT(live(), before);
  }
  EXPECT_EQ(cpu_limit(), std::nullopt);
  EXPECT_EQ(live(), before);
  state.restore();
  EXPECT_EQ(difference(expected, planned_step(*remat, stages, {images_}, mean_square)), "");
}

TEST_F(Behaviour, AnotherBatchSizePlansAgainOnce) {
  const std::vector<Stage> plain = conv_stages();
  CountedStages counted(plain);
  const Tensors half{at::randn({4, 3, 16, 16})};
  const StepState state(plain, {images_});
  auto remat =
      reprise::runtime::remat(counted.stages, {images_}, {.loss = mean_square, .measure = quick()});
  EXPECT_EQ(remat->last_step().plans, 1);
  int64_t plans = 0;
  const Bytes budget = smallest_budget(*remat) + Bytes(8192);  // what a second plan keeps
  remat->set_budget(budget);
  for (const Tensors& inputs : {Tensors{images_}, half, Tensors{images_}, half}) {
    state.restore();
    const Bits expected = plain_steps(plain, inputs, mean_square, 1)[0];
    state.restore();
    counted.reset();
    EXPECT_EQ(difference(expected, planned_step(*remat, plain, inputs, mean_square)), "");
    EXPECT_LE(remat->last_step().measured_peak, budget);
    // Measuring a new kind of input also runs the stages; the third step is the first without it.
    if (remat->last_step().steps > 2) {
      EXPECT_EQ(counted.calls(), planned_runs(*remat));
    }
    if (remat->last_step().steps <= 3) plans = remat->last_step().plans;
  }
  EXPECT_GE(plans, 3);
  EXPECT_EQ(remat->last_step().plans, plans) << "planned again for a known kind of input";
  EXPECT_EQ(remat->last_step().steps, 4);
}

TEST_F(Behaviour, OptimizerStateThatComesLaterPlansAgainOrIsRefusedBeforeAnythingRuns) {
  const std::vector<Stage> plain = dense_stages(6);
  CountedStages counted(plain);
  std::vector<at::Tensor> parameters = testing::parameters_of(plain);
  const int64_t weights = 6 * (64 * 64 + 64) * 4;
  const StepState state(plain, {rows_});
  auto remat =
      reprise::runtime::remat(counted.stages, {rows_}, {.loss = mean_square, .measure = quick()});
  const Bytes smallest = smallest_budget(*remat);
  remat->set_budget(smallest);
  torch::optim::Adam optimizer(parameters);
  planned_step(*remat, plain, {rows_}, mean_square);
  optimizer.step();
  optimizer.zero_grad();
  const Bits before = bits_now(plain, {rows_});
  const int64_t level = live();
  for (int attempt = 0; attempt < 2; ++attempt) {
    counted.reset();
    EXPECT_THROW(remat->forward(rows_), BudgetError);
    EXPECT_EQ(counted.total(), 0) << "attempt " << attempt;
  }
  EXPECT_EQ(difference(before, bits_now(plain, {rows_})), "");
  EXPECT_EQ(live(), level);
  const int64_t plans = remat->last_step().plans;
  const Bytes enough =
      smallest + Bytes(2 * weights + 6 * 2 * 64);  // Adam's step counters are tensors
  remat->set_budget(enough);
  state.restore();
  const Bits expected = plain_steps(plain, {rows_}, mean_square, 1)[0];
  state.restore();
  EXPECT_EQ(difference(expected, planned_step(*remat, plain, {rows_}, mean_square)), "");
  EXPECT_GT(remat->last_step().plans, plans);
  EXPECT_LE(remat->last_step().measured_peak, enough);
}

TEST_F(Behaviour, TwoModelsWithTheirOwnBudgetsInterleaved) {
  const std::vector<Stage> one = conv_stages(), two = dense_stages(6);
  const StepState state_one(one, {images_}), state_two(two, {rows_});
  CountedStages counted_one(one), counted_two(two);
  auto a = reprise::runtime::remat(counted_one.stages, {images_},
                                   {.loss = mean_square, .measure = quick()});
  auto b = reprise::runtime::remat(counted_two.stages, {rows_},
                                   {.loss = mean_square, .measure = quick()});
  auto alternate = [&](auto&& run_one, auto&& run_two, bool nested) {
    Bits bits;
    drop_gradients(one, {});
    drop_gradients(two, {});
    at::Tensor first = mean_square(run_one());
    if (!nested) first.backward();
    at::Tensor second = mean_square(run_two());
    if (nested) first.backward();
    second.backward();
    for (auto& [name, bytes] : bits_now(one, {images_}, first)) bits["one " + name] = bytes;
    for (auto& [name, bytes] : bits_now(two, {rows_}, second)) bits["two " + name] = bytes;
    return bits;
  };
  for (bool nested : {false, true}) {
    SCOPED_TRACE(nested);
    const int64_t level = live();
    // A budget is of all live bytes, those of the other model's step and gradients included.
    const Bytes gradients(storage_bytes(testing::parameters_of(one)));
    if (nested) {  // the first may keep everything beside which the second one just fits
      const Bytes room =
          smallest_budget(*b) - b->chain().fixed - b->chain().input.bytes + gradients;
      a->set_budget(largest_budget(*a) + room);
      b->set_budget(largest_budget(*a) + room);
    } else {
      a->set_budget(smallest_budget(*a));
      b->set_budget(smallest_budget(*b) + gradients + Bytes(64));
    }
    const Bits expected = [&] {
      state_one.restore();
      state_two.restore();
      return alternate([&] { return testing::run_plain(one, {images_}); },
                       [&] { return testing::run_plain(two, {rows_}); }, nested);
    }();
    state_one.restore();
    state_two.restore();
    counted_one.reset();
    counted_two.reset();
    const Bits planned = alternate([&] { return a->forward(Tensors{images_}); },
                                   [&] { return b->forward(Tensors{rows_}); }, nested);
    EXPECT_EQ(difference(expected, planned), "");
    EXPECT_EQ(cpu_limit(), std::nullopt);
    EXPECT_GT(counted_one.total() + counted_two.total(), static_cast<int>(one.size() + two.size()));
    state_one.restore();
    state_two.restore();
    EXPECT_EQ(live(), level);
  }
}

}  // namespace
}  // namespace reprise::runtime
