// Makes training steps with what training code does around the usual layers.
#pragma once

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include "fixture.h"

namespace reprise::runtime::testing {

namespace F = torch::nn::functional;

inline at::Tensor longs(std::vector<int64_t> numbers) { return at::tensor(numbers); }

// This is a step with what belongs to it.
struct Case {
  std::string name;
  std::shared_ptr<nn::Module> module;
  std::function<at::Tensor(const Tensors&)> loss;
  Tensors inputs;
};

// Autograd knows nothing about the inside of this function.
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

inline Case gru() {
  nn::GRU layer(nn::GRUOptions(12, 16).num_layers(2));
  return {"gru",
          layer.ptr(),
          [layer](const Tensors& in) mutable {
            return std::get<0>(layer->forward(in[0])).pow(2).mean();
          },
          {at::randn({6, 4, 12})}};
}

inline Case lstm_of_torch() {
  nn::LSTM layer(nn::LSTMOptions(12, 16).bidirectional(true));
  return {"lstm",
          layer.ptr(),
          [layer](const Tensors& in) mutable {
            return std::get<0>(layer->forward(in[0])).pow(2).mean();
          },
          {at::randn({6, 4, 12})}};
}

inline Case attention(double dropout) {
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

inline Case convolutions() {
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

inline Case tied_embedding() {
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

inline Case custom_function() {
  nn::Linear layer(10, 10);
  return {"custom_function",
          layer.ptr(),
          [layer](const Tensors& in) mutable { return Cube::apply(layer->forward(in[0])).sum(); },
          {at::randn({7, 10})}};
}

// This step writes in place into parts of tensors, has a literal, and uses a value several times.
inline Case in_place() {
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

// One batch norm is on two branches. Its statistics advance twice, in order.
inline Case shared_norm() {
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

// This is fine-tuning: one batch norm is in evaluation mode, one is over memory whose channels lie
// together, and some weights are frozen.
inline Case fine_tuning() {
  nn::Sequential net(nn::Conv2d(nn::Conv2dOptions(3, 16, 3)), nn::BatchNorm2d(16), nn::ReLU(),
                     nn::Conv2d(nn::Conv2dOptions(16, 16, 3).padding(1)), nn::BatchNorm2d(16),
                     nn::ReLU(), nn::AdaptiveAvgPool2d(1), nn::Flatten(), nn::Linear(16, 5));
  net[1]->eval();
  for (at::Tensor& parameter : net[0]->parameters()) parameter.requires_grad_(false);
  return {
      "fine_tuning",
      net.ptr(),
      [net](const Tensors& in) mutable { return F::cross_entropy(net->forward(in[0]), in[1]); },
      {at::randn({4, 3, 9, 9}).contiguous(at::MemoryFormat::ChannelsLast), longs({0, 4, 2, 1})}};
}

inline Case input_gradient() {
  nn::Linear layer(10, 10);
  Tensors inputs{at::randn({7, 10}).requires_grad_()};
  return {"input_gradient", layer.ptr(),
          [layer](const Tensors& in) mutable { return layer->forward(in[0].sin()).pow(3).sum(); },
          inputs};
}

inline Case autocast() {
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

inline Case random_operations() {
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

inline std::vector<Case> cases() {
  at::manual_seed(3);
  return {gru(),
          lstm_of_torch(),
          attention(0),
          attention(0.2),
          convolutions(),
          tied_embedding(),
          custom_function(),
          in_place(),
          shared_norm(),
          fine_tuning(),
          input_gradient(),
          autocast(),
          random_operations()};
}

}  // namespace reprise::runtime::testing
