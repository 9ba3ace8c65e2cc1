// The devices compute what the CPU does, to the bit.
#include <functional>

#include "fixture.h"

namespace {

using Operators = SimTest;

TEST_F(Operators, AnAcceleratorWithTwoDevicesIsThere) {
  EXPECT_EQ(at::accelerator::getAccelerator(), c10::DeviceType::PrivateUse1);
  EXPECT_EQ(at::accelerator::deviceCount(), 2);
  EXPECT_EQ(sim::device(1).str(), "sim:1");
}

TEST_F(Operators, EachHasTheBitsOfTheCpu) {
  using Function = std::function<at::Tensor(at::Tensor)>;
  const std::vector<std::pair<const char*, Function>> cases = {
      {"copies", [](at::Tensor x) { return x.clone(); }},
      {"view", [](at::Tensor x) { return x.t().contiguous(); }},
      {"write through a view", [](at::Tensor x) { return x.narrow(0, 2, 3).mul_(2), x; }},
      {"list",
       [](at::Tensor x) {
         return torch::cat({x, x.mul(2)});
       }},
      {"two results", [](at::Tensor x) { return std::get<0>(x.sort(-1)); }},
      {"size from data", [](at::Tensor x) { return x.index({x.gt(0)}); }},
      {"indices on the host",
       [](at::Tensor x) {
         return x.index({torch::tensor({1, 0, 1})});
       }},
      {"result given",
       [](at::Tensor x) {
         at::Tensor out = torch::empty({0}, x.options());
         return at::add_out(out, x, x), out;
       }},
      {"resize",
       [](at::Tensor x) { return torch::zeros({2}, x.options()).resize_({100}).fill_(3); }},
      {"other type", [](at::Tensor x) { return x.to(torch::kDouble); }},
      {"channels last",
       [](at::Tensor x) {
         return x.view({1, 2, 4, 6}).contiguous(at::MemoryFormat::ChannelsLast).mul(2);
       }},
      {"complex",
       [](at::Tensor x) {
         return torch::view_as_real(torch::complex(x, x).conj().view({48}).mul(2).resolve_conj());
       }},
      {"several tensors at once",
       [](at::Tensor x) {
         std::vector<at::Tensor> list = {x.clone(), x};
         at::_foreach_add_(list, 1.0);
         return list[0];
       }},
      {"convolution",
       [](at::Tensor x) {
         return torch::conv2d(x.view({1, 2, 4, 6}), torch::ones({3, 2, 3, 3}, x.options()), {}, 1,
                              1);
       }},
      {"attention",
       [](at::Tensor x) {
         const auto q = x.view({1, 2, 4, 6});
         return at::scaled_dot_product_attention(q, q, q, {}, 0.0, true);
       }},
      {"set_",
       [](at::Tensor x) { return torch::empty({0}, x.options()).set_(x.storage(), 6, {6}, {1}); }},
      {"number", [](at::Tensor x) { return torch::full({1}, x.sum().item<float>()); }},
  };
  torch::manual_seed(1);
  const at::Tensor x = torch::randn({8, 6});
  for (const auto& [name, function] : cases) {
    const at::Tensor wanted = function(x.clone()), got = function(x.to(sim::device(0)));
    EXPECT_TRUE(same_bits(wanted, got)) << name;
  }
  EXPECT_EQ(reports(), "");
}

TEST_F(Operators, TheResultLiesOnTheDeviceOfItsOperands) {
  const at::Tensor x = torch::ones({4}, on(1));
  EXPECT_EQ((x + 1).device(), sim::device(1));
  EXPECT_EQ(torch::arange(3, on(1)).device(), sim::device(1));
  EXPECT_EQ(x.to(sim::device(0)).device(), sim::device(0));
}

TEST_F(Operators, RandomNumbersComeFromTheDevicesOwnState) {
  torch::manual_seed(5);
  for (int d : {0, 1}) seed(sim::device(d), 5);
  const at::Tensor host = torch::rand({9}), first = torch::rand({9}, on(0));
  EXPECT_TRUE(same_bits(host, first));
  EXPECT_TRUE(same_bits(host, torch::rand({9}, on(1))));  // device 0 did not move it
  // native_dropout has no argument for a generator.
  const auto host_mask = std::get<1>(at::native_dropout(torch::ones({64}), 0.5, true));
  EXPECT_TRUE(
      same_bits(host_mask, std::get<1>(at::native_dropout(torch::ones({64}, on(0)), 0.5, true))));
  EXPECT_TRUE(same_bits(torch::rand({3}), torch::rand({3}, on(0))));
}

TEST_F(Operators, TheStateOfAGeneratorIsSavedAndRestored) {
  at::Generator generator = at::globalContext().defaultGenerator(sim::device(0));
  const at::Tensor state = generator.get_state();
  const at::Tensor first = torch::rand({5}, on());
  EXPECT_FALSE(same_bits(first, torch::rand({5}, on())));
  generator.set_state(state);
  EXPECT_TRUE(same_bits(first, torch::rand({5}, on())));
}

TEST_F(Operators, OperandsOnTheHostAreRefusedByName) {
  const at::Tensor x = torch::ones({4}, on());
  EXPECT_TRUE(same_bits(x + torch::tensor(2.0F), torch::full({4}, 3.0F)));  // one number may
  try {
    x.add(torch::ones({4}));
    FAIL() << "an operand on the host was taken";
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    EXPECT_NE(text.find("aten::add"), std::string::npos) << text;
    EXPECT_NE(text.find("[4] on cpu"), std::string::npos) << text;
  }
  EXPECT_THROW(x.add(torch::ones({4}, on(1))), c10::Error);
}

struct Convolutional : torch::nn::Module {
  torch::nn::Conv2d first{torch::nn::Conv2dOptions(3, 16, 3).padding(1)},
      second{torch::nn::Conv2dOptions(16, 16, 3).padding(1).bias(false)};
  torch::nn::BatchNorm2d norm{16};
  torch::nn::Linear last{16, 10};
  Convolutional() {
    register_module("first", first);
    register_module("second", second);
    register_module("norm", norm);
    register_module("last", last);
  }
  at::Tensor forward(at::Tensor x) {
    x = torch::max_pool2d(first(x), 2);
    x = torch::dropout(torch::relu(norm(second(x))) + x, 0.1, is_training());
    return last(torch::adaptive_avg_pool2d(x, {1, 1}).flatten(1));
  }
};

struct Attention : torch::nn::Module {
  torch::nn::Embedding tokens{50, 32};
  torch::nn::LayerNorm norm{torch::nn::LayerNormOptions({32})};
  torch::nn::Linear qkv{32, 96}, head{32, 10};
  Attention() {
    register_module("tokens", tokens);
    register_module("norm", norm);
    register_module("qkv", qkv);
    register_module("head", head);
  }
  at::Tensor forward(const at::Tensor& image) {
    const at::Tensor ids =
        image.select(1, 0).flatten(1).abs().mul(10).clamp(0, 49).to(torch::kLong);
    at::Tensor x = tokens(ids);
    const auto parts =
        qkv(norm(x)).view({ids.size(0), ids.size(1), 3, 4, 8}).permute({2, 0, 3, 1, 4}).unbind(0);
    x = x + at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, true)
                .transpose(1, 2)
                .reshape(x.sizes());
    return head(torch::gelu(x).mean(1));
  }
};

// Losses, parameters and buffers after ten steps.
template <class Model, class Optimizer, class Settings>
std::vector<at::Tensor> train(c10::Device device, Settings settings) {
  torch::manual_seed(3);
  Model model;
  const at::Tensor x = torch::randn({4, 3, 8, 8}).to(device),
                   y = torch::randint(10, {4}).to(device);
  model.to(device);
  seed(device, 7);
  Optimizer optimizer(model.parameters(), settings);
  std::vector<at::Tensor> all;
  for (int step = 0; step < 10; ++step) {
    optimizer.zero_grad();
    at::Tensor loss = torch::cross_entropy_loss(model.forward(x), y);
    loss.backward();
    optimizer.step();
    all.push_back(loss.detach().cpu());
  }
  for (const auto& each : model.parameters()) all.push_back(each.detach().cpu());
  for (const auto& each : model.buffers()) all.push_back(each.detach().cpu());
  return all;
}

template <class Model, class Optimizer, class Settings>
void expect_the_cpus_bits(Settings settings) {
  const auto wanted = train<Model, Optimizer>(c10::kCPU, settings);
  for (int d : {0, 1}) {
    const sim::Counters before = sim::counters();
    const auto got = train<Model, Optimizer>(sim::device(d), settings);
    const sim::Counters after = sim::counters();
    ASSERT_EQ(wanted.size(), got.size());
    for (size_t i = 0; i < wanted.size(); ++i) {
      EXPECT_TRUE(same_bits(wanted[i], got[i])) << "value " << i << " on sim:" << d;
    }
    EXPECT_GT(after.kernels, before.kernels);
    EXPECT_EQ(after.copied_results, before.copied_results);  // all lie where kernels put them
  }
}

TEST_F(Operators, AConvolutionalNetworkTrainsWithTheBitsOfTheCpu) {
  expect_the_cpus_bits<Convolutional, torch::optim::SGD>(
      torch::optim::SGDOptions(0.05).momentum(0.9));
  EXPECT_EQ(reports(), "");
}

TEST_F(Operators, AttentionTrainsWithTheBitsOfTheCpu) {
  expect_the_cpus_bits<Attention, torch::optim::AdamW>(torch::optim::AdamWOptions(1e-2));
  EXPECT_EQ(reports(), "");
}

TEST_F(Operators, OneBackwardPassGoesOverTwoDevices) {
  torch::manual_seed(2);
  const at::Tensor a = torch::randn({16, 16}), b = torch::randn({16, 4}), x = torch::randn({8, 16});
  const auto gradients = [&](c10::Device first, c10::Device second) {
    const at::Tensor p = a.clone().to(first).requires_grad_(),
                     q = b.clone().to(second).requires_grad_();
    torch::relu(x.to(first).mm(p)).to(second).mm(q).square().sum().backward();
    return std::vector<at::Tensor>{p.grad().cpu(), q.grad().cpu()};
  };
  const auto wanted = gradients(c10::kCPU, c10::kCPU),
             got = gradients(sim::device(0), sim::device(1));
  EXPECT_TRUE(same_bits(wanted[0], got[0]) && same_bits(wanted[1], got[1]));
  EXPECT_EQ(reports(), "");
}

}  // namespace
