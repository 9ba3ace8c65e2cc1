// Options of stages keep something in less memory. They leave the same bits, in the predicted
// bytes, and do not touch what must not be touched.
#include "keep_less.h"

#include <ATen/autocast_mode.h>
#include <ATen/record_function.h>

namespace reprise::runtime::testing {

using internal::chain::GradientBook;
using internal::chain::prepare;
using internal::chain::PreparedModel;
using internal::chain::run_backward;
using internal::chain::run_keep;
using internal::chain::SavedForm;

namespace {

namespace nn = torch::nn;

TEST_F(KeepLessTest, ActivationsBehindABatchNormAreMadeAgainFromItsInput) {
  auto net = std::make_shared<ConvNormActivation>();
  const std::map<std::string, std::function<at::Tensor(at::Tensor)>> of_result = {
      {"relu", [](at::Tensor y) { return y.relu(); }},
      {"relu_", [](at::Tensor y) { return y.relu_(); }},
  };
  for (const auto& [name, activation] : of_result) {
    SCOPED_TRACE(name);
    EXPECT_EQ(saved(net->with(activation), images_, kRebuild), kImages);
    EXPECT_EQ(saved(net->with(activation), images_, kSmaller), 0);
  }
  // Activations that are differentiated from their input keep it, too. Those in place keep a copy
  // of it.
  const std::map<std::string, std::function<at::Tensor(at::Tensor)>> of_input = {
      {"relu6", [](at::Tensor y) { return at::hardtanh(y, 0, 6); }},
      {"relu6_", [](at::Tensor y) { return at::hardtanh_(y, 0, 6); }},
      {"leaky_relu", [](at::Tensor y) { return at::leaky_relu(y, 0.1); }},
      {"gelu", [](at::Tensor y) { return at::gelu(y); }},
      {"gelu_tanh", [](at::Tensor y) { return at::gelu(y, "tanh"); }},
      {"silu", [](at::Tensor y) { return at::silu(y); }},
      {"silu_", [](at::Tensor y) { return at::silu_(y); }},
  };
  for (const auto& [name, activation] : of_input) {
    SCOPED_TRACE(name);
    EXPECT_EQ(saved(net->with(activation), images_, kRebuild), 2 * kImages);
  }
}

// With one pixel, operations in place and out of place do not agree which layout that is.
TEST_F(KeepLessTest, AnImageOfOnePixelInRows) {
  nn::Sequential net(nn::AdaptiveAvgPool2d(1), nn::Conv2d(nn::Conv2dOptions(3, 64, 1)),
                     nn::BatchNorm2d(64));
  nn::Conv2d last(nn::Conv2dOptions(64, 8, 1));
  net->to(at::kFloat);
  for (const bool in_place : {false, true}) {
    SCOPED_TRACE(in_place);
    const Stage stage = stage_of(net.ptr(), [=](const at::Tensor& x) mutable {
      at::Tensor y = net->forward(x);
      return last->forward(in_place ? at::silu_(y) : at::silu(y));
    });
    EXPECT_EQ(saved(stage, images_.contiguous(at::MemoryFormat::ChannelsLast), kRebuild),
              2 * 8 * 64 * 4);
  }
}

TEST_F(KeepLessTest, OtherLayoutsAndTypes) {
  auto net = std::make_shared<ConvNormActivation>();
  const Stage stage = net->with([](at::Tensor y) { return y.relu_(); });
  EXPECT_EQ(saved(stage, images_.contiguous(at::MemoryFormat::ChannelsLast), kRebuild), kImages);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  EXPECT_EQ(saved(stage, images_, kRebuild), kImages / 2) << "bfloat16";
  at::autocast::set_autocast_enabled(at::kCPU, false);
  net->to(at::kDouble);
  EXPECT_EQ(saved(stage, images_.to(at::kDouble), kRebuild), 2 * kImages);
}

// A tensor that is made again is given back while the stage still runs, not when it is over.
TEST_F(KeepLessTest, TheForwardPassNeedsLessToo) {
  nn::Sequential net;
  for (int k = 0; k < 6; ++k) {
    net->push_back(conv(8));
    net->push_back(nn::BatchNorm2d(8));
    net->push_back(nn::ReLU());
  }
  const Stage stage =
      stage_of(net.ptr(), [net](const at::Tensor& x) mutable { return net->forward(x); });
  const at::Tensor x = at::randn({8, 8, 16, 16});
  const PreparedModel model = prepared(stage, x);
  const auto peak = [&](const SavedForm& saved_form) {
    const int64_t before = live();
    reset_peak(c10::kCPU);
    run_keep(model.stages[0], {x.detach()}, model.parameters, saved_form);
    return memory_count(c10::kCPU).peak - before;
  };
  peak({});  // warm up
  EXPECT_LE(peak(kRebuild), peak({}) - 4 * kImages);
}

// A stage of a model may be a planned model itself.
TEST_F(KeepLessTest, AStageWithinAStageIsKeptAsItIsAsked) {
  auto net = std::make_shared<ConvNormActivation>();
  const Stage inner = net->with([](at::Tensor y) { return y.relu(); });
  const PreparedModel inside = prepared(inner, images_);
  int64_t kept = 0;
  const Stage outer = stage_of(nullptr, [&](const at::Tensor& x) {
    kept = run(inside, images_, {}).kept;
    return x * 2;
  });
  const PreparedModel model = prepared(outer, images_);
  run(model, images_, {});
  const int64_t plainly = kept;
  run(model, images_, kRebuild);
  EXPECT_EQ(kept, plainly);
}

// Counts the batch norms that run meanwhile on this thread.
template <class Work>
int batch_norms_in(Work&& work) {
  static thread_local int count;
  count = 0;
  const auto on_start =
      [](const at::RecordFunction& event) -> std::unique_ptr<at::ObserverContext> {
    count += std::string(event.name()) == "aten::native_batch_norm";
    return nullptr;
  };
  const auto handle = at::addThreadLocalCallback(at::RecordFunctionCallback(on_start));
  work();
  at::removeCallback(handle);
  return count;
}

TEST_F(KeepLessTest, NothingIsMadeTwiceAndOutputsAreNotMade) {
  auto net = std::make_shared<ConvNormActivation>();
  const auto backward_of = [&](const Stage& stage) {
    const PreparedModel model = prepared(stage, images_);
    auto [outputs, kept] = run_keep(model.stages[0], {images_}, model.parameters, kRebuild);
    GradientBook book(model.parameters.size());
    return batch_norms_in([&, &out = outputs, &held = kept] {
      run_backward(model.stages[0], std::move(held), {at::ones_like(out[0])}, model.parameters,
                   book);
    });
  };
  // Both results were saved, the norm's and the activation's, and the second was made from the
  // first.
  EXPECT_EQ(backward_of(net->with([](at::Tensor y) { return at::silu(y); })), 1);
  const Stage output = stage_of(net, [net = net.get()](const at::Tensor& x) {
    return net->norm->forward(net->first->forward(x)).relu();
  });
  EXPECT_EQ(backward_of(output), 0);
}

// Weight and bias are those of the call, whether or not autograd knows them.
TEST_F(KeepLessTest, BatchNormsWithoutTheirParameters) {
  auto net = std::make_shared<ConvNormActivation>();
  const Stage stage = net->with([](at::Tensor y) { return y.relu(); });
  {
    at::NoGradGuard no_grad;
    net->norm->bias.normal_();
  }
  net->norm->bias.set_requires_grad(false);
  EXPECT_EQ(saved(stage, images_, kRebuild), kImages);
  net->norm->weight.set_requires_grad(false);
  EXPECT_EQ(saved(stage, images_, kRebuild), kImages);
  net->norm = net->replace_module(
      "norm", nn::BatchNorm2d(nn::BatchNorm2dOptions(8).affine(false).track_running_stats(false)));
  EXPECT_EQ(saved(stage, images_, kRebuild), kImages);
  net->eval();
  EXPECT_EQ(saved(stage, images_, kRebuild), kImages)
      << "without running statistics, evaluation normalises by the batch, too";
  net->norm = net->replace_module("norm", nn::BatchNorm2d(8));
  net->eval();
  EXPECT_EQ(saved(stage, images_, kRebuild), 0) << "by its running statistics";
  const at::Tensor bias = at::randn({8});
  const Stage only_bias = stage_of(net, [net = net.get(), bias](const at::Tensor& x) {
    const at::Tensor y =
        at::batch_norm(net->first->forward(x), {}, bias, {}, {}, true, 0.1, 1e-5, false);
    return net->second->forward(y.relu());
  });
  EXPECT_EQ(saved(only_bias, images_, kRebuild), kImages);
}

TEST_F(KeepLessTest, ATensorThatSeveralReadIsMadeOnce) {
  auto net = std::make_shared<ConvNormActivation>();
  const Stage stage = stage_of(net, [net = net.get()](const at::Tensor& x) {
    const at::Tensor y = net->norm->forward(net->first->forward(x)).relu();
    return net->second->forward(y) * y + net->second->forward(y);
  });
  EXPECT_EQ(saved(stage, images_, kRebuild), kImages);
}

// The first stage's input wants no gradient, so autograd does not know where it came from.
TEST_F(KeepLessTest, AnInputWithoutAGradient) {
  auto net = std::make_shared<ConvNormActivation>();
  const Stage stage = stage_of(net, [net = net.get()](const at::Tensor& x) {
    return net->second->forward(net->norm->forward(x).relu());
  });
  const at::Tensor x = at::randn({8, 8, 16, 16});
  const PreparedModel model = prepare({{"", {stage}}}, {}, {{x}});
  ASSERT_FALSE(model.stages[0].traits.input_needs_grad[0]);
  const StageRun plain = run(model, x, {}), other = run(model, x, kRebuild);
  EXPECT_EQ(difference(plain.bits, other.bits), "");
  EXPECT_EQ(plain.kept - other.kept, kImages);
}

// This is a perceptron behind a layer norm, as in a transformer. Linear layers see their input as a
// matrix.
Stage perceptron(double epsilon, bool affine = true, int64_t width = 32) {
  nn::Sequential net(
      nn::LayerNorm(nn::LayerNormOptions({width}).eps(epsilon).elementwise_affine(affine)),
      nn::Linear(width, 4 * width), nn::GELU(), nn::Linear(4 * width, width));
  return stage_of(net.ptr(), [net](const at::Tensor& x) mutable { return net->forward(x); });
}

TEST_F(KeepLessTest, LayerNormsAndLinearLayers) {
  const at::Tensor x = at::randn({4, 16, 32});
  const int64_t bytes = 4 * 16 * 32 * 4;
  for (const double epsilon : {1e-5, 1e-6, 1e-12, 3.7e-5, 0.0}) {
    SCOPED_TRACE(epsilon);
    EXPECT_EQ(saved(perceptron(epsilon), x, kRebuild), 5 * bytes);
    // The deviation of these rows is nearly the epsilon's.
    EXPECT_EQ(saved(perceptron(epsilon), x * 1e-3, kRebuild), 5 * bytes);
  }
  EXPECT_EQ(saved(perceptron(1e-5, false), x, kRebuild), 5 * bytes);
  EXPECT_EQ(saved(perceptron(1e-5), at::zeros({4, 16, 32}), kRebuild), 5 * bytes);
}

TEST_F(KeepLessTest, ALayerNormInBfloat16) {
  const at::Tensor x = (at::randn({64, 16, 32}) * 3).to(at::kBFloat16);
  Stage stage = perceptron(1e-6);
  stage.module->to(at::kBFloat16);
  EXPECT_EQ(saved(stage, x, kRebuild), 5 * 64 * 16 * 32 * 2);
}

TEST_F(KeepLessTest, IndicesOfMaxPooling) {
  nn::MaxPool2d pool(2);
  const Stage stage =
      stage_of(nullptr, [pool](const at::Tensor& x) mutable { return pool->forward(x); });
  const int64_t places = 8 * 3 * 8 * 8;
  EXPECT_EQ(saved(stage, images_, kSmaller), 6 * places) << "two bytes in place of eight";
  // This plane has more elements than two bytes can count, and the last one is the largest.
  const at::Tensor wide = at::arange(190 * 190, at::kFloat).view({1, 1, 190, 190});
  EXPECT_EQ(saved(stage, wide, kSmaller), 4 * 95 * 95 / 64 * 64);
}

TEST_F(KeepLessTest, FactorsOfDropout) {
  const Stage dropout =
      stage_of(nullptr, [](const at::Tensor& x) { return at::dropout(x, 0.3, true); });
  const int64_t elements = images_.numel();
  EXPECT_EQ(saved(dropout, images_, kSmaller), 4 * elements - elements / 8);
  EXPECT_EQ(saved(dropout, images_.to(at::kDouble), kSmaller), 8 * elements - elements / 8);
  EXPECT_EQ(saved(dropout, images_.contiguous(at::MemoryFormat::ChannelsLast), kSmaller),
            4 * elements - elements / 8);
  const Stage nothing_dropped =
      stage_of(nullptr, [](const at::Tensor& x) { return at::dropout(x, 1e-9, true); });
  EXPECT_EQ(saved(nothing_dropped, images_, kSmaller), 4 * elements - elements / 8);

  const Stage noise = stage_of(nullptr, [](const at::Tensor& x) { return x * at::rand_like(x); });
  EXPECT_EQ(saved(noise, images_, kSmaller), 0) << "factors of many values";
  at::Tensor held;
  const Stage keeps_them = stage_of(nullptr, [&held](const at::Tensor& x) {
    held = at::bernoulli(at::full_like(x, 0.5));
    return x * held;
  });
  EXPECT_EQ(saved(keeps_them, images_, kSmaller), 0) << "somebody else holds them";
  const at::Tensor mask = at::bernoulli(at::full_like(images_, 0.5));
  const Stage constant = stage_of(nullptr, [mask](const at::Tensor& x) { return x * mask; });
  EXPECT_EQ(saved(constant, images_, kSmaller), 0) << "nothing was drawn";
  const Stage by_hand = stage_of(
      nullptr, [](const at::Tensor& x) { return x * at::bernoulli(at::full_like(x, 0.5)); });
  EXPECT_EQ(saved(by_hand, images_, kSmaller), 0) << "might have other values another time";
}

TEST_F(KeepLessTest, OptionsAreOfferedAndSwitched) {
  nn::Sequential net(conv(3), nn::BatchNorm2d(8), nn::ReLU(), nn::MaxPool2d(2), nn::Dropout(0.5),
                     conv(8));
  const Stage stage =
      stage_of(net.ptr(), [net](const at::Tensor& x) mutable { return net->forward(x); });
  const auto names = [&](const AlternativeOptions& alternatives) {
    MeasureOptions options = quick();
    options.alternatives = alternatives;
    const Chain chain = std::get<Chain>(
        profile({stage}, {images_.detach().requires_grad_()}, mean_square, options).problem);
    std::vector<std::string> found;
    for (const StageOption& option : chain.stages[0].options) {
      found.push_back(option.name);
      EXPECT_EQ(option.exactness, Exactness::kBitwise);
      EXPECT_GT(option.forward.time, Nanos(0));
      EXPECT_GT(option.backward.time, Nanos(0));
    }
    return found;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(names({}), (Names{"keep", "smaller", "rebuild"}));
  EXPECT_EQ(names({.without = {"rebuild"}}), (Names{"keep", "smaller"}));
  EXPECT_EQ(names({.only = {"rebuild"}}), (Names{"keep", "rebuild"}));
  EXPECT_EQ(names({.only = {"small-indices"}}), (Names{"keep", "smaller"}));
  EXPECT_EQ(names({.without = {"rebuild", "one-bit-mask", "small-indices"}}), Names{"keep"});
  EXPECT_THROW(names({.only = {"in-place"}}), InputError);
  EXPECT_THROW(names({.without = {"rebiuld"}}), InputError);
}

}  // namespace
}  // namespace reprise::runtime::testing
