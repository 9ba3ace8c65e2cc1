// Promises of captured steps (runtime/capture.h) beyond the zoo: what training code does around the usual
// layers, what is refused and why, and that a failed step leaves nothing behind.
#include "reprise/runtime/capture.h"

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include "fixture.h"
#include "reprise/check/simulate.h"

namespace reprise::runtime::testing {
namespace {

namespace F = torch::nn::functional;

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

at::Tensor longs(std::vector<int64_t> numbers) { return at::tensor(numbers); }

// A step with what it belongs to.
struct Case {
  std::string name;
  std::shared_ptr<nn::Module> module;
  std::function<at::Tensor(const Tensors&)> loss;
  Tensors inputs;
};

// A function that autograd knows nothing about.
struct Cube : torch::autograd::Function<Cube> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x) {
    context->save_for_backward({x});
    return x * x * x;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const at::Tensor x = context->get_saved_variables()[0];
    return {gradients[0] * 3 * x * x};
  }
};

Case gru() {
  nn::GRU layer(nn::GRUOptions(12, 16).num_layers(2));
  return {"gru",
          layer.ptr(),
          [layer](const Tensors& in) mutable {
            return std::get<0>(layer->forward(in[0])).pow(2).mean();
          },
          {at::randn({6, 4, 12})}};
}

Case lstm_of_torch() {
  nn::LSTM layer(nn::LSTMOptions(12, 16).bidirectional(true));
  return {"lstm",
          layer.ptr(),
          [layer](const Tensors& in) mutable {
            return std::get<0>(layer->forward(in[0])).pow(2).mean();
          },
          {at::randn({6, 4, 12})}};
}

Case attention(double dropout) {
  nn::Linear qkv(32, 96), out(32, 32);
  auto module = std::make_shared<nn::Module>();
  module->register_module("qkv", qkv.ptr());
  module->register_module("out", out.ptr());
  auto loss = [=](const Tensors& in) mutable {
    const auto parts =
        qkv->forward(in[0]).view({2, 24, 3, 4, 8}).permute({2, 0, 3, 1, 4}).unbind(0);
    at::Tensor y =
        at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, dropout, true);
    return out->forward(y.transpose(1, 2).reshape({2, 24, 32})).pow(2).mean();
  };
  return {dropout > 0 ? "attention_dropout" : "attention", module, loss, {at::randn({2, 24, 32})}};
}

Case convolutions() {
  nn::Sequential net(nn::Conv2d(nn::Conv2dOptions(8, 8, 3).padding(1).groups(8)),
                     nn::GroupNorm(nn::GroupNormOptions(2, 8)), nn::SiLU(),
                     nn::ConvTranspose2d(nn::ConvTranspose2dOptions(8, 6, 2).stride(2)),
                     nn::AvgPool2d(2), nn::Softplus(), nn::MaxPool2d(2),
                     nn::AdaptiveAvgPool2d(nn::AdaptiveAvgPool2dOptions({2, 2})), nn::Flatten(),
                     nn::Linear(24, 5));
  return {"convolutions",
          net.ptr(),
          [net](const Tensors& in) mutable { return F::cross_entropy(net->forward(in[0]), in[1]); },
          {at::randn({3, 8, 12, 12}), longs({0, 4, 2})}};
}

Case tied_embedding() {
  nn::Embedding words(nn::EmbeddingOptions(30, 16));
  nn::LayerNorm norm(nn::LayerNormOptions({16}));
  auto module = std::make_shared<nn::Module>();
  module->register_module("words", words.ptr());
  module->register_module("norm", norm.ptr());
  auto loss = [=](const Tensors& in) mutable {
    at::Tensor h = norm->forward(at::dropout(words->forward(in[0]), 0.2, true)).tanh();
    return F::cross_entropy(at::linear(h, words->weight).view({-1, 30}), in[0].view(-1));
  };
  return {"tied_embedding", module, loss, {at::randint(0, 30, {4, 9})}};
}

Case custom_function() {
  nn::Linear layer(10, 10);
  return {"custom_function",
          layer.ptr(),
          [layer](const Tensors& in) mutable { return Cube::apply(layer->forward(in[0])).sum(); },
          {at::randn({7, 10})}};
}

// In-place writes into parts of tensors, a literal, and several uses of one value.
Case in_place() {
  nn::Linear layer(10, 10);
  return {"in_place",
          layer.ptr(),
          [layer](const Tensors& in) mutable {
            at::Tensor y = layer->forward(in[0]).relu_();
            at::Tensor z = at::zeros({7, 20});
            z.narrow(1, 0, 10).copy_(y);
            z.narrow(1, 10, 10).add_(y, 2);
            z = z.index_put({longs({1, 3})}, at::ones({20}));
            z = z.index({longs({0, 1, 2, 5})}).mul(at::tensor({2.0F, 3.0F}).repeat({10}));
            return (z * z).sum() + at::cat({y, y * y}, 1).mean();
          },
          {at::randn({7, 10})}};
}

// One batch norm on two branches: its statistics advance twice, in order.
Case shared_norm() {
  nn::BatchNorm1d norm(10);
  nn::Linear first(10, 10), second(10, 10);
  auto module = std::make_shared<nn::Module>();
  module->register_module("norm", norm.ptr());
  module->register_module("first", first.ptr());
  module->register_module("second", second.ptr());
  auto loss = [=](const Tensors& in) mutable {
    const at::Tensor y = norm->forward(first->forward(in[0])).relu();
    return norm->forward(second->forward(y)).relu().pow(2).mean();
  };
  return {"shared_norm", module, loss, {at::randn({16, 10})}};
}

Case input_gradient() {
  nn::Linear layer(10, 10);
  Tensors inputs{at::randn({7, 10}).requires_grad_()};
  return {"input_gradient", layer.ptr(),
          [layer](const Tensors& in) mutable { return layer->forward(in[0].sin()).pow(3).sum(); },
          inputs};
}

Case autocast() {
  nn::Sequential net(nn::Linear(24, 24), nn::GELU(), nn::Linear(24, 24), nn::Softplus(),
                     nn::Linear(24, 4));
  return {"autocast",
          net.ptr(),
          [net](const Tensors& in) mutable {
            at::autocast::set_autocast_enabled(at::kCPU, true);
            const at::Tensor y = net->forward(in[0]);
            at::autocast::clear_cache();
            at::autocast::set_autocast_enabled(at::kCPU, false);
            return y.to(at::kFloat).pow(2).mean();
          },
          {at::randn({32, 24})}};
}

Case random_operations() {
  nn::Linear layer(20, 20);
  return {"random",
          layer.ptr(),
          [layer](const Tensors& in) mutable {
            at::Tensor y = layer->forward(at::dropout(in[0], 0.3, true));
            y = at::rrelu(y, 0.1, 0.4, true) + at::randn_like(y) * 0.1;
            y = at::alpha_dropout(y, 0.2, true).mul(at::bernoulli(at::full_like(y, 0.5)));
            return layer->forward(at::feature_dropout(y.view({5, 5, 20}), 0.2, true)).pow(2).mean();
          },
          {at::randn({25, 20})}};
}

std::vector<Case> cases() {
  at::manual_seed(3);
  return {gru(),          lstm_of_torch(),  attention(0),      attention(0.2),
          convolutions(), tied_embedding(), custom_function(), in_place(),
          shared_norm(),  input_gradient(), autocast(),        random_operations()};
}

std::vector<Stage> as_stages(const Case& work) { return {{work.name, work.module, {}}}; }

at::Tensor eager(const Case& work, const Tensors& inputs) {
  at::Tensor loss = work.loss(inputs);
  loss.backward();
  return loss;
}

CapturedStep captured(const Case& work, OnMiss on_miss = OnMiss::kRefuse) {
  CaptureOptions options;
  options.modules = {work.module};
  options.on_miss = on_miss;
  options.measure = quick();
  return capture([&work](const Tensors& in) { return eager(work, in); }, work.inputs, options);
}

int64_t smallest_peak(const Graph& graph) {
  return plan(graph, {.budget = graph.fixed, .time_limit = Nanos(300'000'000)})
      .smallest_budget.value_or(baseline(graph).peak)
      .count();
}

class CaptureTest : public RuntimeTest {};

TEST_F(CaptureTest, WhatTrainingCodeDoesIsReplayedBitForBitInThePredictedBytes) {
  for (const Case& work : cases()) {
    SCOPED_TRACE(work.name);
    const std::vector<Stage> stages = as_stages(work);
    const StepState state(stages, work.inputs);
    CapturedStep step = captured(work);
    std::vector<Bits> expected;
    state.restore();
    for (int n = 0; n < 2; ++n) {
      drop_gradients(stages, work.inputs);
      const at::Tensor loss = eager(work, work.inputs);
      expected.push_back(bits_now(stages, work.inputs, loss));
    }
    state.restore();
    const int64_t plain = baseline(step.graph()).peak.count(), floor = smallest_peak(step.graph());
    for (int k = 0; k <= 5; ++k) {
      SCOPED_TRACE(fmt::format("budget {} of 5 from plain {} to {}", k, plain, floor));
      try {
        step.plan(
            {.budget = Bytes(plain - (plain - floor) * k / 5), .time_limit = Nanos(100'000'000)});
      } catch (const BudgetError&) {
        EXPECT_GT(k, 3);
        continue;
      }
      state.restore();
      for (int n = 0; n < 2; ++n) {
        drop_gradients(stages, work.inputs);
        const at::Tensor loss = step.run(work.inputs);
        EXPECT_EQ(difference(expected[static_cast<size_t>(n)], bits_now(stages, work.inputs, loss)),
                  "");
        EXPECT_EQ(step.last_step().predicted_peak.count(), step.last_step().measured_peak.count());
        EXPECT_EQ(step.last_step().fallbacks, 0);
      }
    }
    state.restore();
  }
}

TEST_F(CaptureTest, GradientsThatAreThereAreAddedTo) {
  const Case work = convolutions();
  const std::vector<Stage> stages = as_stages(work);
  CapturedStep step = captured(work);
  for (int n = 0; n < 3; ++n) eager(work, work.inputs);
  const Bits expected = bits_now(stages, {});
  drop_gradients(stages, {});
  for (int n = 0; n < 3; ++n) step.run(work.inputs);  // gradients of the run before leave the arena
  EXPECT_GT(step.last_step().served, 0);
  EXPECT_EQ(step.last_step().fallbacks, 0);
  EXPECT_GE(step.last_step().arena_height, step.last_step().arena_live_bytes);
  EXPECT_EQ(difference(expected, bits_now(stages, {})), "");
}

TEST_F(CaptureTest, OtherValuesOfTheInputsAreUsed) {
  const Case work = convolutions();
  const std::vector<Stage> stages = as_stages(work);
  CapturedStep step = captured(work);
  const Tensors other{at::randn({3, 8, 12, 12}), longs({1, 1, 3})};
  const at::Tensor loss = eager(work, other);
  const Bits expected = bits_now(stages, {}, loss);
  for (int n = 0; n < 2; ++n) {
    drop_gradients(stages, {});
    EXPECT_EQ(difference(expected, bits_now(stages, {}, step.run(other))), "");
  }
}

TEST_F(CaptureTest, SeveralOutputsAndBackwardPasses) {
  nn::Linear layer(10, 10);
  const Tensors inputs{at::randn({7, 10})};
  auto both = [&](const Tensors& in) {
    const at::Tensor y = layer->forward(in[0]);
    at::Tensor first = y.pow(2).mean(), second = layer->forward(y.detach().tanh()).sum();
    first.backward();
    second.backward();
    return Tensors{first, second, y};
  };
  CapturedStep step = capture(both, inputs, {.measure = quick()});
  const Tensors plain = both(inputs);
  const at::Tensor gradient = layer->weight.grad().clone();
  layer->zero_grad();
  const Tensors replayed = step.run_all(inputs);
  ASSERT_EQ(replayed.size(), 3U);
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(plain[i].equal(replayed[i]));
  EXPECT_TRUE(gradient.equal(layer->weight.grad()));
}

// The message of the InputError that capturing throws.
std::string refusal(const std::function<at::Tensor(const Tensors&)>& step, const Tensors& inputs) {
  try {
    capture(step, inputs, {.measure = quick()});
  } catch (const InputError& error) {
    return error.what();
  }
  return "captured";
}

TEST_F(CaptureTest, WhatCannotBeReplayedIsRefusedByName) {
  nn::Linear layer(10, 10);
  const Tensors inputs{at::randn({7, 10})};
  auto with = [&](auto&& change) {
    return [&layer, change](const Tensors& in) mutable {
      at::Tensor loss = change(layer->forward(in[0])).sum();
      loss.backward();
      return loss;
    };
  };
  EXPECT_PRED2(contains,
               refusal(with([](at::Tensor y) { return y * y.max().item<float>(); }), inputs),
               "reads a number out of a tensor");
  EXPECT_PRED2(contains, refusal(with([](at::Tensor y) { return y.index({y > 0}); }), inputs),
               "mask");
  EXPECT_PRED2(contains, refusal(with([](at::Tensor y) { return y.masked_select(y > 0); }), inputs),
               "masked_select");
  EXPECT_PRED2(contains,
               refusal(with([&](at::Tensor y) {
                         at::NoGradGuard no_grad;
                         layer->weight.mul_(0.5);
                         return y;
                       }),
                       inputs),
               "parameter");
  EXPECT_PRED2(contains,
               refusal(
                   [&](const Tensors& in) {
                     in[0].mul_(1);
                     at::Tensor loss = layer->forward(in[0]).sum();
                     loss.backward();
                     return loss;
                   },
                   inputs),
               "input 0");
  int count = 0;
  EXPECT_PRED2(contains, refusal(with([&](at::Tensor y) { return y * (1.0 / ++count); }), inputs),
               "changes from run to run");
  EXPECT_PRED2(
      contains,
      refusal(with([&](at::Tensor y) { return ++count % 2 ? y.sin() : y.cos().exp(); }), inputs),
      "does not do the same work twice");
  EXPECT_PRED2(contains,
               refusal(with([](at::Tensor y) { return y.to_sparse().to_dense(); }), inputs),
               "cannot be captured");
  // Nothing of all that is left behind.
  EXPECT_FALSE(layer->weight.grad().defined());
}

TEST_F(CaptureTest, OtherCircumstancesAreRefusedOrCapturedAgain) {
  const Case work = convolutions();
  CapturedStep step = captured(work);
  const Tensors larger{at::randn({6, 8, 12, 12}), longs({0, 1, 2, 3, 4, 0})};
  auto message = [&](const Tensors& inputs) {
    try {
      step.run(inputs);
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string("ran");
  };
  EXPECT_PRED2(contains, message(larger), "input 0 is Float[6, 8, 12, 12]");
  EXPECT_PRED2(contains, message({work.inputs[0]}), "1 inputs instead of 2");
  EXPECT_PRED2(contains, message({work.inputs[0].to(at::kDouble), work.inputs[1]}), "Double");
  work.module->eval();
  EXPECT_PRED2(contains, message(work.inputs), "evaluation mode");
  work.module->train();
  {
    at::NoGradGuard no_grad;
    EXPECT_PRED2(contains, message(work.inputs), "gradients are switched off");
  }

  CapturedStep flexible = captured(work, OnMiss::kRecapture);
  const std::vector<Stage> stages = as_stages(work);
  const at::Tensor loss = eager(work, larger);
  const Bits expected = bits_now(stages, {}, loss);
  drop_gradients(stages, {});
  EXPECT_EQ(difference(expected, bits_now(stages, {}, flexible.run(larger))), "");
}

TEST_F(CaptureTest, ABudgetThatIsTooSmallIsRefusedWithTheSmallestPeak) {
  const Case work = convolutions();
  CapturedStep step = captured(work);
  try {
    step.plan({.budget = Bytes(1000)});
    FAIL() << "planned";
  } catch (const BudgetError& error) {
    EXPECT_PRED2(contains, error.what(), "the smallest that one was found for");
    EXPECT_GT(error.requested(), 1000);
  }
}

// Every allocation of a step refused in turn: nothing has changed, and the next step is right.
TEST_F(CaptureTest, AStepThatFailsLeavesEverythingAsItWas) {
  const Case work = shared_norm();
  const std::vector<Stage> stages = as_stages(work);
  const StepState state(stages, work.inputs);
  CapturedStep step = captured(work);
  const Bits expected = [&] {
    const at::Tensor loss = eager(work, work.inputs);
    return bits_now(stages, {}, loss);
  }();
  state.restore();
  const int64_t plain = baseline(step.graph()).peak.count();
  step.plan({.budget = Bytes((plain + smallest_peak(step.graph())) / 2)});
  const Bits before = bits_now(stages, {});
  const int64_t level = live();
  step.run(work.inputs);
  const int64_t peak = step.last_step().measured_peak.count();
  EXPECT_EQ(peak, step.last_step().predicted_peak.count());
  state.restore();
  int refused = 0;
  for (int64_t limit = level; limit < peak; limit += 64) {
    SCOPED_TRACE(limit);
    {
      const CpuLimitGuard guard(limit);
      EXPECT_THROW(step.run(work.inputs), BudgetError);
    }
    ++refused;
    EXPECT_EQ(difference(before, bits_now(stages, {})), "");
    EXPECT_EQ(live(), level);
  }
  EXPECT_GT(refused, 10);
  EXPECT_EQ(live(), level);
  EXPECT_EQ(difference(expected, bits_now(stages, {}, step.run(work.inputs))), "");
}

// The operators of which only the shape of an argument is read: other bytes there change nothing.
TEST(CaptureOperators, ArgumentsReadForTheirShapeMayHoldAnything) {
  const at::Tensor x = at::randn({2, 3, 8, 8}), other = at::full_like(x, NAN);
  const auto [y, indices] = at::max_pool2d_with_indices(x, {2, 2});
  const at::Tensor g = at::randn_like(y);
  auto same = [](const at::Tensor& a, const at::Tensor& b) {
    EXPECT_TRUE(a.equal(b));
    EXPECT_FALSE(a.isnan().any().item<bool>());
  };
  auto max_pool = [&](const at::Tensor& self) {
    return at::max_pool2d_with_indices_backward(g, self, {2, 2}, {2, 2}, {0, 0}, {1, 1}, false,
                                                indices);
  };
  same(max_pool(x), max_pool(other));
  auto avg_pool = [&](const at::Tensor& self) {
    return at::avg_pool2d_backward(g, self, {2, 2}, {2, 2}, {0, 0}, false, true, std::nullopt);
  };
  same(avg_pool(x), avg_pool(other));
  same(at::_adaptive_avg_pool2d_backward(g, x), at::_adaptive_avg_pool2d_backward(g, other));
  const at::Tensor scores = at::randn({5, 7}).log_softmax(1), target = longs({0, 6, 3, 2, 1});
  auto nll = [&](const at::Tensor& self) {
    return at::nll_loss_backward(at::ones({}), self, target, {}, at::Reduction::Mean, -100,
                                 at::full({}, 5.0F));
  };
  same(nll(scores), nll(at::full_like(scores, NAN)));
  const at::Tensor weight = at::randn({3}), mean = at::randn({3}), inverse = at::rand({3}) + 1;
  auto norm = [&](const at::Tensor& statistics) {
    return std::get<0>(at::native_batch_norm_backward(
        x, x.sin(), weight, statistics, statistics, mean, inverse, true, 1e-5, {true, true, true}));
  };
  same(norm(at::rand({3})), norm(at::full({3}, NAN)));
}

}  // namespace
}  // namespace reprise::runtime::testing
