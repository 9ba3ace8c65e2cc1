// A tensor that is made again needs what it was made from. Where something is written to that, the
// tensor is kept as it is, or the step is refused.
#include "keep_less.h"
#include "runtime/device/backward_queue.h"

namespace reprise::runtime::testing {

using internal::chain::PreparedModel;
using internal::device::drain_backward_queue;

namespace {

class KeepLessWritesTest : public KeepLessTest {};

// Writes without history leave the tensor's node in place. So nothing is made again from what the
// node made.
TEST_F(KeepLessWritesTest, WritesThatAutogradDoesNotRecord) {
  auto net = std::make_shared<ConvNormActivation>();
  const auto stage_with = [&](const std::function<void(at::Tensor)>& write) {
    return net->with([write](at::Tensor y) {
      at::NoGradGuard no_grad;
      write(y);
      at::AutoGradMode with_grad(true);
      return y.relu();
    });
  };
  EXPECT_EQ(saved(stage_with([](at::Tensor) {}), images_, kRebuild), kImages);
  EXPECT_EQ(saved(stage_with([](at::Tensor y) { y.clamp_(-0.5, 0.5); }), images_, kRebuild), 0);
  // This write changes nothing on this sample, but might on another.
  EXPECT_EQ(saved(stage_with([](at::Tensor y) { y.clamp_(-1e9, 1e9); }), images_, kRebuild), 0);
  EXPECT_EQ(saved(stage_with([](at::Tensor y) { y.view({-1}).mul_(2); }), images_, kRebuild), 0);
  // Autograd refuses to tell the history of such a view.
  const auto twice_written = [](at::Tensor y) { y.view({-1}).mul_(2).add_(1); };
  EXPECT_EQ(saved(stage_with(twice_written), images_, kRebuild), 0);
  // The operation in place takes a copy, and something has been written to it.
  const Stage in_place = net->with([](at::Tensor y) {
    {
      at::NoGradGuard no_grad;
      y.clamp_(-1e9, 1e9);
    }
    return at::silu_(y);
  });
  EXPECT_EQ(saved(in_place, images_, kRebuild), 0);

  // The first reader got the norm's result, and the second one what was written over it.
  const Stage twice = stage_of(net, [net = net.get()](const at::Tensor& x) {
    const at::Tensor y = net->norm->forward(net->first->forward(x));
    const at::Tensor a = y.exp();
    {
      at::NoGradGuard no_grad;
      at::Tensor(y).mul_(2);
    }
    return net->second->forward(y) + a;
  });
  EXPECT_EQ(saved(twice, images_, kRebuild), 0);
}

// A stage that plain training would refuse is refused. A change that plain training would not notice,
// because it reads a copy, is refused, too.
TEST_F(KeepLessWritesTest, WhatATensorIsMadeFromMayNotChange) {
  auto net = std::make_shared<ConvNormActivation>();
  const Stage stage = net->with([](at::Tensor y) { return y.relu(); });
  const PreparedModel model = prepared(stage, images_);
  const auto change_bias = [&] {
    at::NoGradGuard no_grad;
    net->norm->bias.add_(1);
  };
  EXPECT_THROW(run(model, images_, kRebuild, change_bias), InputError);
  drain_backward_queue();

  // The input of this norm is given by the stage before.
  const Stage norm_first = stage_of(net, [net = net.get()](const at::Tensor& x) {
    return net->second->forward(net->norm->forward(x).relu());
  });
  const at::Tensor x = at::randn({8, 8, 16, 16});
  const PreparedModel second = prepared(norm_first, x);
  const auto change_input = [&] {
    at::NoGradGuard no_grad;
    x.add_(1);
  };
  EXPECT_THROW(run(second, x, kRebuild, change_input), InputError);
  drain_backward_queue();
}

// Autograd refuses such a stage, so no option of it is ever asked for.
TEST_F(KeepLessWritesTest, AStageThatWritesToWhatItSavedIsRefusedWhenItIsMeasured) {
  auto net = std::make_shared<ConvNormActivation>();
  const Stage stage = stage_of(net, [net = net.get()](const at::Tensor& x) {
    at::Tensor y = net->norm->forward(net->first->forward(x)).relu();
    at::Tensor z = net->second->forward(y);
    y.add_(1);
    return z + y;
  });
  EXPECT_THROW(profile({stage}, {images_.detach().requires_grad_()}, mean_square, quick()),
               c10::Error);
}

// A stage that writes to its input is given a copy, and the first values of the copy are gone.
TEST_F(KeepLessWritesTest, AnInputThatIsWrittenToIsNotReadAgain) {
  auto net = std::make_shared<ConvNormActivation>();
  const Stage stage = stage_of(net, [net = net.get()](at::Tensor x) {
    return net->second->forward(net->norm->forward(x.relu_()).relu());
  });
  EXPECT_EQ(saved(stage, at::randn({8, 8, 16, 16}), kRebuild), kImages);
}

}  // namespace
}  // namespace reprise::runtime::testing
