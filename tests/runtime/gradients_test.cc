// Every gradient of a step is plain training's and is handed over once: accumulated, shared,
// frozen, of the input, or seen by hooks.
#include <torch/csrc/autograd/function_hook.h>

#include "fixture.h"

namespace reprise::runtime::testing {
namespace {

namespace nn = torch::nn;

using GradientTest = RuntimeTest;

TEST_F(GradientTest, GradientsAccumulateOverThreeBackwardPasses) {
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
    // The same holds for gradients that are zero instead of absent.
    for (const at::Tensor& p : parameters_of(plain)) p.mutable_grad().zero_();
    backward();
    for (auto& [name, bytes] : bits_now(plain, {rows_})) bits["zeroed " + name] = bytes;
    return bits;
  };
  const Bits expected = accumulate([&](const Tensors& x) { return run_plain(plain, x); });
  state.restore();
  auto remat = reprise::runtime::remat(counted.stages, {rows_},
                                       {.loss = mean_square, .measure = without_options()});
  remat->set_budget(smallest_budget(*remat) + Bytes(6 * (64 * 64 + 64) * 4));
  const Bits planned = accumulate([&](const Tensors& x) {
    counted.reset();
    return remat->forward(x);
  });
  EXPECT_EQ(difference(expected, planned), "");
  EXPECT_GT(counted.total(), 6);
  EXPECT_LE(remat->last_step().measured_peak, remat->last_step().budget);
}

TEST_F(GradientTest, AParameterOfSeveralStagesAndTwiceInOneStage) {
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

TEST_F(GradientTest, TiedWeights) {
  nn::Embedding embedding(96, 64);
  std::vector<Stage> stages{layer("embedding", embedding)};
  for (Stage& stage : dense_stages(4)) stages.push_back(stage);
  stages.push_back({"head", embedding.ptr(), [embedding](const Tensors& x) {
                      return Tensors{at::matmul(x[0], embedding->weight.t())};
                    }});
  expect_same_steps(stages, {at::randint(96, {128})});
}

TEST_F(GradientTest, FrozenStagesAtTheStartAndInTheMiddle) {
  for (const std::vector<size_t>& frozen : {std::vector<size_t>{0, 1, 2}, {2, 3}, {5}}) {
    SCOPED_TRACE(frozen.front());
    std::vector<Stage> stages = dense_stages(6);
    for (size_t i : frozen) {
      for (at::Tensor p : stages[i].module->parameters()) p.set_requires_grad(false);
    }
    expect_same_steps(stages, {rows_});
  }
}

TEST_F(GradientTest, TheInputsGradientAndAWhollyFrozenModel) {
  const at::Tensor x = rows_.clone().set_requires_grad(true);
  std::vector<Stage> stages = dense_stages(6);
  expect_same_steps(stages, {x});
  for (const Stage& stage : stages) {
    for (at::Tensor p : stage.module->parameters()) p.set_requires_grad(false);
  }
  expect_same_steps(stages, {x});
}

TEST_F(GradientTest, GradientsFlowToWhatMadeTheInput) {
  const std::vector<Stage> stages = dense_stages(6);
  const at::Tensor leaf = at::randn({256, 64}).set_requires_grad(true);
  mean_square(run_plain(stages, {leaf * 2})).backward();
  const Bits expected = bits_now(stages, {leaf});
  drop_gradients(stages, {leaf});
  auto remat =
      reprise::runtime::remat(stages, {leaf * 2}, {.loss = mean_square, .measure = quick()});
  remat->set_budget(smallest_budget(*remat));
  at::Tensor loss = mean_square({remat->forward(leaf * 2)});
  loss.backward();
  EXPECT_EQ(difference(expected, bits_now(stages, {leaf})), "");
}

TEST_F(GradientTest, HooksFireOnceWithTheFullGradient) {
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

  std::vector<at::Tensor> watched = parameters_of(stages);
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

}  // namespace
}  // namespace reprise::runtime::testing
