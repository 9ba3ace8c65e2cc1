// Leaves that a step makes, and flags of leaves that it sets, are those of the plain step over many
// calls.
#include "fixture.h"
#include "reprise/model/errors.h"
#include "reprise/runtime/capture.h"

namespace reprise::runtime {
namespace {

namespace nn = torch::nn;

struct LeavesTest : testing::RuntimeTest {
  using Leaf = std::function<at::Tensor(const at::Tensor&)>;

  // Makes a step that also returns the sum of the gradient that its leaf gets.
  static StepFunction step_with(nn::Linear layer, const Leaf& leaf) {
    return [layer, leaf](const Tensors& inputs) mutable -> Tensors {
      const at::Tensor x = leaf(inputs[0]);
      const at::Tensor loss = layer->forward(x).square().mean();
      loss.backward();
      return {loss.detach(), x.grad().sum()};
    };
  }

  // Runs both steps on equal inputs, and compares what they return and the gradients.
  void expect_same_calls(const Leaf& leaf) {
    nn::Linear plain(8, 4), layer(8, 4);
    {
      const at::NoGradGuard no_grad;
      layer->weight.copy_(plain->weight);
      layer->bias.copy_(plain->bias);
    }
    const StepFunction expected = step_with(plain, leaf);
    CapturedStep step =
        capture(step_with(layer, leaf), {at::randn({4, 8})}, {.modules = {layer.ptr()}});
    for (int call = 0; call < 5; ++call) {
      const at::Tensor x = at::randn({4, 8}), y = x.clone();
      plain->zero_grad();
      layer->zero_grad();
      const Tensors wanted = expected({x}), given = step.run_all({y});
      ASSERT_TRUE(at::equal(wanted[0], given[0]) && at::equal(wanted[1], given[1])) << call;
      ASSERT_TRUE(at::equal(plain->weight.grad(), layer->weight.grad())) << call;
      ASSERT_TRUE(at::equal(plain->bias.grad(), layer->bias.grad())) << call;
      ASSERT_EQ(x.requires_grad(), y.requires_grad()) << call;
      ASSERT_EQ(x.grad().defined(), y.grad().defined()) << call;
      ASSERT_TRUE(!x.grad().defined() || at::equal(x.grad(), y.grad())) << call;
    }
  }
};

TEST_F(LeavesTest, AViewOfAnInput) {
  expect_same_calls([](const at::Tensor& x) { return x.slice(0).requires_grad_(); });
}

TEST_F(LeavesTest, ADetachedInput) {
  expect_same_calls([](const at::Tensor& x) { return x.detach().requires_grad_(); });
}

TEST_F(LeavesTest, TheDataOfAnInputWhichNoOperationShows) {
  expect_same_calls([](const at::Tensor& x) { return x.variable_data().requires_grad_(); });
}

TEST_F(LeavesTest, ATensorThatTheStepMakes) {
  expect_same_calls([](const at::Tensor& x) { return (x * 2).detach().requires_grad_(); });
}

TEST_F(LeavesTest, TheInputItself) {
  expect_same_calls([](const at::Tensor& x) { return x.requires_grad_(); });
}

TEST_F(LeavesTest, ALeafWithAHook) {
  expect_same_calls([](const at::Tensor& x) {
    at::Tensor leaf = x.slice(0).requires_grad_();
    leaf.register_hook([](const at::Tensor& gradient) { return gradient * 0.5; });
    return leaf;
  });
}

TEST_F(LeavesTest, ACaptureLeavesTheFlagOfTheSampleAlone) {
  nn::Linear layer(8, 4);
  const at::Tensor x = at::randn({4, 8});
  CapturedStep step =
      capture(step_with(layer, [](const at::Tensor& in) { return in.requires_grad_(); }), {x},
              {.modules = {layer.ptr()}});
  EXPECT_FALSE(x.requires_grad());
  EXPECT_FALSE(x.grad().defined());
  for (int call = 0; call < 3; ++call) {
    x.mutable_grad() = at::Tensor();
    layer->zero_grad();
    step.run({x});
    EXPECT_TRUE(x.requires_grad());
  }
}

TEST_F(LeavesTest, AnInputThatWasReadBeforeItWasALeafIsAnotherOneAfterwards) {
  nn::Linear layer(8, 4);
  const auto leaf = [](const at::Tensor& in) {
    in.sum();
    return in.requires_grad_();
  };
  const at::Tensor x = at::randn({4, 8});
  CapturedStep step = capture(step_with(layer, leaf), {x}, {.modules = {layer.ptr()}});
  step.run({x});
  EXPECT_THROW(step.run({x}), InputError);
}

}  // namespace
}  // namespace reprise::runtime
