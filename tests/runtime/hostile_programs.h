// These are programs that change something between two calls of a captured step, or in the function
// itself.
#pragma once

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <torch/utils.h>

#include <random>

#include "fixture.h"
#include "reprise/runtime/capture.h"

namespace reprise::runtime::testing::hostile {

constexpr int kCalls = 20, kChange = 7;

struct NetImpl : nn::Module {
  NetImpl()
      : in(register_module("in", nn::Linear(6, 8))),
        norm(register_module("norm", nn::BatchNorm1d(8))),
        drop(register_module("drop", nn::Dropout(0.3))),
        out(register_module("out", nn::Linear(8, 3))),
        shift(register_buffer("shift", at::zeros({3}))) {}

  at::Tensor forward(const at::Tensor& x) { return out(drop(norm(in(x)).tanh())) + shift; }

  nn::Linear in;
  nn::BatchNorm1d norm;
  nn::Dropout drop;
  nn::Linear out;
  at::Tensor shift;
};
TORCH_MODULE(Net);

// A program consists of its functions and of a World.
struct World {
  Net net;
  double number = 1;
  bool flag = false;
  int way = 0;
  int64_t calls = 0;
  std::vector<float> numbers{1, 2, 3};
  at::Tensor constant = at::ones({3});
  std::function<at::Tensor(const at::Tensor&)> activation = [](const at::Tensor& y) {
    return y.tanh();
  };
  std::mt19937 random{1};
};

inline at::Tensor finish(const at::Tensor& y) {
  at::Tensor loss = y.square().mean();
  if (loss.requires_grad()) loss.backward();
  return loss;
}

struct Hostile {
  std::string name;
  std::function<at::Tensor(World&, const Tensors&)> step;
  std::function<void(World&)> change = [](World&) {};
  std::function<std::vector<WatchedValue>(World&)> watched = {};
  std::function<Tensors(Tensors, int call)> inputs = [](Tensors batch, int) { return batch; };
  bool named = true;   // whether the capture knows the module
  bool right = false;  // whether nothing may be refused
};

inline at::Tensor plain(World& world, const Tensors& in) { return finish(world.net(in[0])); }
inline at::Tensor scaled(World& world, const Tensors& in) {
  return finish(world.net(in[0]) * world.number);
}

inline void switch_autocast_on() { at::autocast::set_autocast_enabled(at::kCPU, true); }

inline std::vector<Hostile> hostile_programs() {
  return {
      {.name = "a number, watched",
       .step = scaled,
       .change = [](World& world) { world.number = 0.5; },
       .watched = [](World& world) { return std::vector{watch("number", world.number)}; }},
      {.name = "a number, found by lockstep",
       .step = scaled,
       .change = [](World& world) { world.number = 0.5; }},
      {.name = "a number that the function changes",
       .step =
           [](World& world, const Tensors& in) {
             world.number += 1;
             return finish(world.net(in[0]) * world.number);
           }},
      {.name = "a watched number that the function changes",
       .step =
           [](World& world, const Tensors& in) {
             ++world.calls;
             return finish(world.net(in[0]) * (world.calls > 12 ? 2.0 : 1.0));
           },
       .watched = [](World& world) { return std::vector{watch("calls", world.calls)}; }},
      {.name = "a schedule by a counter of the function",
       .step =
           [](World& world, const Tensors& in) {
             ++world.calls;
             return finish(world.net(in[0]) * (world.calls > 12 ? 2.0 : 1.0));
           }},
      {.name = "a flag, watched",
       .step =
           [](World& world, const Tensors& in) {
             const at::Tensor y = world.net(in[0]);
             return finish(world.flag ? y.sigmoid() : y);
           },
       .change = [](World& world) { world.flag = true; },
       .watched = [](World& world) { return std::vector{watch("flag", world.flag)}; }},
      {.name = "the probability of dropout, watched",
       .step = plain,
       .change = [](World& world) { world.net->drop->options.p(0.6); },
       .watched =
           [](World& world) {
             return std::vector{WatchedValue{
                 "p", [net = world.net] { return std::to_string(net->drop->options.p()); }}};
           }},
      {.name = "the probability of dropout, found by lockstep",
       .step = plain,
       .change = [](World& world) { world.net->drop->options.p(0.6); }},
      {.name = "the momentum of a norm",
       .step = plain,
       .change = [](World& world) { world.net->norm->options.momentum(0.5); }},
      {.name = "evaluation mode", .step = plain, .change = [](World& world) { world.net->eval(); }},
      {.name = "evaluation mode of a module that the capture does not know",
       .step = plain,
       .change = [](World& world) { world.net->eval(); },
       .named = false},
      {.name = "another parameter",
       .step = plain,
       .change =
           [](World& world) {
             world.net->out->weight = at::full({3, 8}, 0.25, at::requires_grad());
           }},
      {.name = "another parameter of a module that the capture does not know",
       .step = plain,
       .change =
           [](World& world) {
             world.net->out->weight = at::full({3, 8}, 0.25, at::requires_grad());
           },
       .named = false},
      {.name = "a frozen parameter",
       .step = plain,
       .change = [](World& world) { world.net->in->weight.requires_grad_(false); }},
      {.name = "another child",
       .step = plain,
       .change =
           [](World& world) {
             world.net->out = world.net->replace_module("out", nn::Linear(8, 3));
           }},
      {.name = "a hook on a parameter",
       .step = plain,
       .change =
           [](World& world) {
             world.net->out->weight.register_hook([](const at::Tensor& g) { return g * 2; });
           }},
      {.name = "a literal that grows",
       .step =
           [](World& world, const Tensors& in) {
             ++world.calls;
             return finish(world.net(in[0]) * torch::tensor(static_cast<double>(world.calls)));
           }},
      {.name = "a literal that changes",
       .step =
           [](World& world, const Tensors& in) {
             return finish(world.net(in[0]) * torch::tensor(world.number));
           },
       .change = [](World& world) { world.number = 3; }},
      {.name = "memory of the host",
       .step =
           [](World& world, const Tensors& in) {
             return finish(world.net(in[0]) * at::from_blob(world.numbers.data(), {3}, at::kFloat));
           },
       .change =
           [](World& world) {
             world.numbers = {4, 5, 6};
           }},
      {.name = "memory of the host that is written in place",
       .step =
           [](World& world, const Tensors& in) {
             return finish(world.net(in[0]) * at::from_blob(world.numbers.data(), {3}, at::kFloat));
           },
       .change = [](World& world) { world.numbers[1] = 7; }},
      {.name = "another function",
       .step = [](World& world,
                  const Tensors& in) { return finish(world.activation(world.net(in[0]))); },
       .change =
           [](World& world) {
             world.activation = [](const at::Tensor& y) { return y.sigmoid(); };
           }},
      {.name = "random numbers of the host",
       .step =
           [](World& world, const Tensors& in) {
             return finish(world.net(in[0]) *
                           std::uniform_real_distribution<double>()(world.random));
           }},
      {.name = "layer drop",
       .step =
           [](World& world, const Tensors& in) {
             const at::Tensor y = world.net(in[0]);
             return finish(at::rand({}).item<double>() < 0.5 ? y : y.sigmoid());
           }},
      {.name = "a number out of a tensor",
       .step =
           [](World& world, const Tensors& in) {
             const at::Tensor y = world.net(in[0]);
             return finish((y.sum() > 0).item<bool>() ? y : y * 2);
           }},
      {.name = "a size that depends on data",
       .step =
           [](World& world, const Tensors& in) {
             const at::Tensor y = world.net(in[0]);
             return finish(y.masked_select(y > 0));
           }},
      {.name = "deterministic algorithms",
       .step = plain,
       .change = [](World&) { at::globalContext().setDeterministicAlgorithms(true, true); }},
      {.name = "deterministic algorithms, switched by the function",
       .step =
           [](World& world, const Tensors& in) {
             at::globalContext().setDeterministicAlgorithms(true, true);
             return plain(world, in);
           }},
      {.name = "the default type",
       .step = [](World& world,
                  const Tensors& in) { return finish(world.net(in[0]) * at::full({3}, 1.0 / 3)); },
       .change = [](World&) { torch::set_default_dtype(caffe2::TypeMeta::Make<double>()); }},
      {.name = "the number of threads",
       .step = plain,
       .change = [](World&) { at::set_num_threads(at::get_num_threads() + 1); }},
      {.name = "oneDNN",
       .step = plain,
       .change = [](World&) { at::globalContext().setUserEnabledMkldnn(false); }},
      {.name = "autocast", .step = plain, .change = [](World&) { switch_autocast_on(); }},
      {.name = "no gradients",
       .step = plain,
       .change = [](World&) { at::GradMode::set_enabled(false); }},
      {.name = "inputs of another type",
       .step = [](World& world,
                  const Tensors& in) { return finish(world.net(in[0].to(at::kFloat))); },
       .inputs =
           [](Tensors batch, int call) {
             return call < kChange ? batch : Tensors{batch[0].to(at::kDouble), batch[1]};
           }},
      {.name = "inputs of another shape",
       .step = plain,
       .inputs =
           [](Tensors batch, int call) {
             return call < kChange ? batch : Tensors{batch[0].slice(0, 0, 3), batch[1]};
           }},
      {.name = "inputs with other strides",
       .step = plain,
       .inputs =
           [](Tensors batch, int call) {
             return call < kChange ? batch : Tensors{batch[0].t().contiguous().t(), batch[1]};
           }},
      {.name = "inputs that share memory",
       .step = [](World& world, const Tensors& in) { return finish(world.net(in[0] * in[1])); },
       .inputs =
           [](Tensors batch, int call) {
             return call < kChange ? batch : Tensors{batch[0], batch[0]};
           }},
      {.name = "one input less",
       .step = plain,
       .inputs = [](Tensors batch,
                    int call) { return call < kChange ? batch : Tensors{batch[0]}; }},
      {.name = "an input that wants a gradient",
       .step = plain,
       .inputs =
           [](Tensors batch, int call) {
             if (call >= kChange) batch[0].requires_grad_();
             return batch;
           }},
      {.name = "another seed",
       .step = plain,
       .change = [](World&) { at::manual_seed(99); },
       .right = true},
      {.name = "other bytes in a buffer",
       .step = plain,
       .change = [](World& world) { world.net->shift.fill_(2); },
       .right = true},
      {.name = "other bytes in a constant",
       .step = [](World& world,
                  const Tensors& in) { return finish(world.net(in[0]) * world.constant); },
       .change = [](World& world) { world.constant.mul_(3); },
       .right = true},
      {.name = "a parameter with other memory",
       .step = plain,
       .change =
           [](World& world) {
             world.net->out->weight.set_data(at::full({3, 8}, 0.25));
           },
       .right = true},
  };
}

}  // namespace reprise::runtime::testing::hostile
