// Tests reversible networks: bits against the same network run plainly, memory that does not depend
// on depth, random state, buffers and ranges.
#include "reprise/runtime/nn/reversible.h"

#include <ATen/autocast_mode.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "reprise/model/errors.h"
#include "reprise/runtime/allocator.h"
#include "reprise/runtime/capture.h"
#include "reprise/runtime/remat.h"
#include "support/scale.h"

namespace reprise::runtime::nn {
namespace {

namespace tn = torch::nn;
using Network = std::shared_ptr<ReversibleSequence>;

// Reads its input three times, and a parameter twice.
struct AttentionImpl : tn::Module {
  explicit AttentionImpl(int64_t width)
      : norm(register_module("norm", tn::LayerNorm(tn::LayerNormOptions({width})))),
        qk(register_module("qk", tn::Linear(width, width))),
        v(register_module("v", tn::Linear(width, width))) {}
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor n = norm(x);
    const at::Tensor scores = qk(n).matmul(qk(n).transpose(-1, -2)) / std::sqrt(n.size(-1));
    return scores.softmax(-1).matmul(v(n)) + 0.1 * x.tanh() * v(x);
  }
  tn::LayerNorm norm;
  tn::Linear qk, v;
};
TORCH_MODULE(Attention);

tn::Sequential mlp(int64_t width, double drop = 0) {
  tn::Sequential net(tn::LayerNorm(tn::LayerNormOptions({width})), tn::Linear(width, 2 * width),
                     tn::GELU(), tn::Linear(2 * width, width));
  if (drop > 0) net->push_back(tn::Dropout(drop));
  return net;
}

tn::Sequential convolution(int64_t channels) {
  return tn::Sequential(
      tn::BatchNorm2d(channels), tn::ReLU(),
      tn::Conv2d(tn::Conv2dOptions(channels, channels, 3).padding(1).bias(false)));
}

struct Outcome {
  Tensors results;    // y1, y2, the gradients of both inputs
  Tensors gradients;  // of the parameters
  Tensors buffers;
  at::Tensor random;  // numbers drawn after the step
};

void drop_gradients(const tn::Module& module) {
  for (const at::Tensor& p : module.parameters()) p.mutable_grad() = at::Tensor();
}

// Runs one step; buffers are put back.
Outcome step(const Network& network, bool reverse, const at::Tensor& x1, const at::Tensor& x2,
             const std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>& loss) {
  network->set_reverse(reverse);
  drop_gradients(*network);
  Tensors before;
  for (const at::Tensor& b : network->buffers()) before.push_back(b.clone());
  torch::manual_seed(7);
  const at::Tensor a = x1.detach().clone().requires_grad_(),
                   b = x2.detach().clone().requires_grad_();
  const auto [y1, y2] = network->forward(a, b);
  loss(y1, y2).backward();
  Outcome found;
  found.results = {y1.detach(), y2.detach(), a.grad(), b.grad()};
  for (const at::Tensor& p : network->parameters()) found.gradients.push_back(p.grad());
  for (const at::Tensor& p : network->buffers()) found.buffers.push_back(p.clone());
  found.random = at::rand({4});
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < before.size(); ++i) network->buffers()[i].copy_(before[i]);
  return found;
}

at::Tensor weighted(const at::Tensor& y1, const at::Tensor& y2) {
  return (y1 * y1.cos()).sum() + (y2.square() * 0.3).sum();
}

bool same(const Tensors& a, const Tensors& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].defined() != b[i].defined()) return false;
    if (a[i].defined() && !at::equal(a[i], b[i])) return false;
  }
  return true;
}

void expect_same_bits(const Network& network, const at::Tensor& x1, const at::Tensor& x2,
                      const std::string& what, decltype(weighted) loss = weighted) {
  SCOPED_TRACE(what);
  const Outcome plain = step(network, false, x1, x2, loss),
                reversed = step(network, true, x1, x2, loss);
  EXPECT_TRUE(same(plain.results, reversed.results));
  EXPECT_TRUE(same(plain.gradients, reversed.gradients));
  EXPECT_TRUE(same(plain.buffers, reversed.buffers));
  EXPECT_TRUE(at::equal(plain.random, reversed.random));
}

Network sequence(std::vector<ReversibleBlock> blocks, ReversibleOptions options = {}) {
  return std::make_shared<ReversibleSequence>(std::move(blocks), options);
}

TEST(Reversible, ManyRandomNetworksHaveTheBitsOfPlainTraining) {
  const int64_t cases = reprise::testing::test_scale(60);
  size_t random_draws = 0, shared = 0;
  for (int64_t n = 0; n < cases; ++n) {
    std::mt19937_64 draw(static_cast<uint64_t>(n));
    const auto pick = [&](int64_t from, int64_t to) {
      return std::uniform_int_distribution<int64_t>(from, to)(draw);
    };
    torch::manual_seed(n);
    const int64_t width = 8 * pick(1, 4), depth = pick(1, 6);
    std::vector<Stage> made;
    const auto make = [&]() -> Stage {
      if (!made.empty() && pick(0, 4) == 0) {
        ++shared;
        return made[static_cast<size_t>(pick(0, std::ssize(made) - 1))];
      }
      const int64_t kind = pick(0, 3);
      random_draws += kind == 1;
      if (kind == 0) return branch(mlp(width));
      if (kind == 1) return branch(mlp(width, 0.3));
      if (kind == 2) return branch(Attention(width));
      return branch(tn::Sequential(tn::Linear(width, width), tn::Tanh()));
    };
    std::vector<ReversibleBlock> blocks;
    for (int64_t i = 0; i < depth; ++i) {
      for (int e = 0; e < 2; ++e) made.push_back(make());
      blocks.push_back({made[made.size() - 2], made.back()});
    }
    const auto type = n % 3 == 0 ? at::kDouble : at::kFloat;
    const Network network = sequence(blocks);
    network->to(type);
    const at::Tensor x1 = at::randn({3, 5, width}, type), x2 = at::randn({3, 5, width}, type);
    expect_same_bits(network, x1, x2, fmt::format("seed {}", n));
    if (::testing::Test::HasFailure()) break;
  }
  EXPECT_GT(random_draws, 10);
  EXPECT_GT(shared, 10);
}

TEST(Reversible, SixtyFourBlocksHaveTheBitsOfPlainTraining) {
  torch::manual_seed(1);
  std::vector<ReversibleBlock> blocks;
  for (int i = 0; i < 64; ++i) blocks.push_back({branch(Attention(16)), branch(mlp(16, 0.1))});
  expect_same_bits(sequence(blocks), at::randn({4, 6, 16}), at::randn({4, 6, 16}), "transformer");
}

TEST(Reversible, ConvolutionsWithBatchNormsInBothLayouts) {
  torch::manual_seed(2);
  std::vector<ReversibleBlock> blocks;
  for (int i = 0; i < 6; ++i) blocks.push_back({branch(convolution(8)), branch(convolution(8))});
  const Network network = sequence(blocks);
  const at::Tensor x1 = at::randn({4, 8, 10, 10}), x2 = at::randn({4, 8, 10, 10});
  expect_same_bits(network, x1, x2, "contiguous");
  const auto last = at::MemoryFormat::ChannelsLast;
  expect_same_bits(network, x1.contiguous(last), x2.contiguous(last), "channels last");
  network->eval();
  expect_same_bits(network, x1, x2, "evaluation");
}

// The result depends on a buffer that each run changes.
struct CountingImpl : tn::Module {
  CountingImpl()
      : weight(register_parameter("w", at::randn({8}))),
        calls(register_buffer("n", at::ones({}))) {}
  at::Tensor forward(const at::Tensor& x) {
    calls.add_(1);
    return (x * weight / calls.clone()).sin();
  }
  at::Tensor weight, calls;
};
TORCH_MODULE(Counting);

TEST(Reversible, BuffersThatResultsDependOnAreAsInTheFirstRun) {
  torch::manual_seed(3);
  const Counting one, two;
  expect_same_bits(sequence({{branch(one), branch(two)}, {branch(one), branch(one)}}),
                   at::randn({5, 8}), at::randn({5, 8}), "counting");
}

TEST(Reversible, PartsThatAreFrozenOrReceiveNoGradient) {
  torch::manual_seed(4);
  std::vector<ReversibleBlock> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back({branch(mlp(8)), branch(Attention(8))});
  const Network network = sequence(blocks);
  const at::Tensor x = at::randn({2, 3, 8}), y = at::randn({2, 3, 8});
  expect_same_bits(
      network, x, y, "only the first result",
      +[](const at::Tensor& y1, const at::Tensor&) { return y1.square().sum(); });
  expect_same_bits(
      network, x, y, "only the second result",
      +[](const at::Tensor&, const at::Tensor& y2) { return y2.square().sum(); });
  for (size_t i = 0; i < 3; ++i) {
    for (const at::Tensor& p : blocks[i].f.module->parameters()) p.requires_grad_(false);
    expect_same_bits(network, x, y, fmt::format("{} frozen", i + 1));
  }
  for (const at::Tensor& p : blocks[0].g.module->parameters()) p.requires_grad_(false);
  // Inputs without gradients: the first branches are not undone at all.
  Tensors found;
  for (const bool reverse : {false, true}) {
    network->set_reverse(reverse);
    drop_gradients(*network);
    const auto [y1, y2] = network->forward(x, y);
    weighted(y1, y2).backward();
    for (const at::Tensor& p : network->parameters()) found.push_back(p.grad());
  }
  const auto half = found.begin() + std::ssize(found) / 2;
  EXPECT_TRUE(same({found.begin(), half}, {half, found.end()}));
  EXPECT_TRUE(found.back().defined());
}

TEST(Reversible, AutocastAndGradientsOnDemand) {
  torch::manual_seed(5);
  const Network network =
      sequence({{branch(mlp(8)), branch(mlp(8))}, {branch(mlp(8)), branch(mlp(8))}});
  const at::Tensor x = at::randn({4, 8}).requires_grad_(), y = at::randn({4, 8});
  std::vector<Tensors> found;
  for (const bool reverse : {false, true}) {
    network->set_reverse(reverse);
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    const auto [y1, y2] = network->forward(x, y);
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::clear_cache();
    EXPECT_EQ(y1.scalar_type(), at::kFloat);
    Tensors wanted = network->parameters();
    wanted.push_back(x);
    found.push_back(torch::autograd::grad({weighted(y1, y2)}, wanted));
  }
  EXPECT_TRUE(same(found[0], found[1]));
  EXPECT_FALSE(network->parameters()[0].grad().defined());
}

TEST(Reversible, TwoStepsInFlightAndHooksOnParameters) {
  torch::manual_seed(6);
  const tn::Sequential first = mlp(8, 0.2);
  const Network network =
      sequence({{branch(first), branch(mlp(8, 0.2))}, {branch(first), branch(mlp(8))}});
  int calls = 0;
  first->parameters()[0].register_hook([&](const at::Tensor& g) { return ++calls, g * 2; });
  Tensors found;
  for (const bool reverse : {false, true}) {
    network->set_reverse(reverse);
    drop_gradients(*network);
    torch::manual_seed(1);
    const auto [a1, a2] = network->forward(at::ones({2, 8}), at::zeros({2, 8}));
    const auto [b1, b2] = network->forward(at::zeros({2, 8}), at::ones({2, 8}));
    weighted(a1, a2).backward();
    weighted(b1, b2).backward();
    for (const at::Tensor& p : network->parameters()) found.push_back(p.grad());
  }
  const auto half = found.begin() + std::ssize(found) / 2;
  EXPECT_TRUE(same({found.begin(), half}, {half, found.end()}));
  EXPECT_EQ(calls, 4);  // once a backward pass
}

TEST(Reversible, FloatingPointStreamsAreCloseToPlainTraining) {
  torch::manual_seed(8);
  std::vector<ReversibleBlock> blocks;
  for (int i = 0; i < 32; ++i) blocks.push_back({branch(mlp(16)), branch(mlp(16))});
  const Network network = sequence(blocks, {.streams = StreamNumbers::kFloatingPoint});
  const at::Tensor x = at::randn({8, 16}), y = at::randn({8, 16});
  const Outcome plain = step(network, false, x, y, weighted),
                reversed = step(network, true, x, y, weighted);
  EXPECT_TRUE(at::equal(plain.results[0], reversed.results[0]));
  for (size_t i = 0; i < plain.gradients.size(); ++i) {
    const at::Tensor error = (plain.gradients[i] - reversed.gradients[i]).abs().max();
    EXPECT_LT(error.item<float>(), 1e-4 * plain.gradients[i].abs().max().item<float>() + 1e-6);
  }
  // Rounding to fixed point is close to no rounding.
  const Network fixed = sequence(blocks);
  const Outcome rounded = step(fixed, true, x, y, weighted);
  EXPECT_TRUE(at::allclose(plain.results[0], rounded.results[0], 1e-3, 1e-3));
}

struct StepBytes {
  int64_t peak = 0, kept = 0;
};

// The most bytes of a step above what lived before it, and what lives between its two passes; without
// gradients of parameters.
StepBytes bytes_of_step(int64_t depth, bool reverse) {
  torch::manual_seed(1);
  std::vector<ReversibleBlock> blocks;
  for (int64_t i = 0; i < depth; ++i) blocks.push_back({branch(mlp(32)), branch(mlp(32))});
  const Network network = sequence(blocks, {.reverse = reverse});
  for (const at::Tensor& p : network->parameters()) p.mutable_grad() = at::zeros_like(p);
  const at::Tensor x = at::randn({1024, 32}), y = at::randn({1024, 32});
  StepBytes found;
  for (int n = 0; n < 2; ++n) {
    const int64_t before = memory_count(at::kCPU).live;
    reset_peak(at::kCPU);
    auto [y1, y2] = network->forward(x, y);
    found.kept = memory_count(at::kCPU).live - before;
    y1.sum().add(y2.sum()).backward();
    found.peak = memory_count(at::kCPU).peak - before;
  }
  return found;
}

TEST(Reversible, MemoryDoesNotDependOnDepth) {
  install_cpu_allocator();
  const StepBytes two = bytes_of_step(2, true), many = bytes_of_step(64, true);
  EXPECT_EQ(two.peak, many.peak);
  EXPECT_EQ(two.kept, many.kept);
  const StepBytes plain_two = bytes_of_step(2, false), plain_many = bytes_of_step(64, false);
  EXPECT_LE(many.peak, plain_two.peak);  // the memory of two blocks
  EXPECT_GT(plain_many.peak, 20 * many.peak);
}

TEST(Reversible, NumbersOutOfRangeAreRefusedAndNothingHasChanged) {
  torch::manual_seed(9);
  const auto large = [](const Tensors& x) -> Tensors { return {x[0] * 1000}; };
  tn::Sequential norm = convolution(4);
  norm->push_back(tn::Dropout(0.5));
  const Network network =
      sequence({{branch(norm), branch(norm)}, {branch(norm), {"large", nullptr, large}}});
  const at::Tensor x = at::randn({2, 4, 5, 5}).requires_grad_(), y = at::full({2, 4, 5, 5}, 9.0);
  const at::Tensor mean = network->buffers()[0].clone();
  at::manual_seed(5);
  const at::Tensor expected = at::rand({3});
  at::manual_seed(5);
  try {
    network->forward(x, y * 100);
    FAIL();
  } catch (const InputError& error) {
    const std::string said = error.what();
    EXPECT_NE(said.find("the sum behind branch 'large'"), std::string::npos) << said;
    EXPECT_NE(said.find("[-2048, 2048)"), std::string::npos) << said;
  }
  EXPECT_TRUE(at::equal(network->buffers()[0], mean));
  EXPECT_TRUE(at::equal(at::rand({3}), expected));
  EXPECT_THROW(network->forward(x * 1e4, y), InputError);
  EXPECT_THROW(network->forward(x, y * std::nanf("")), InputError);
  network->set_reverse(false);
  EXPECT_THROW(network->forward(x, y * 100), InputError);
}

TEST(Reversible, InsideACapturedStepAndAPlannedStage) {
  torch::manual_seed(10);
  const Network network =
      sequence({{branch(mlp(8)), branch(Attention(8))}, {branch(mlp(8)), branch(mlp(8))}});
  const at::Tensor x = at::randn({2, 3, 8}), y = at::randn({2, 3, 8});
  const Outcome expected = step(network, false, x, y, weighted);
  network->set_reverse(true);
  const auto gradients = [&] {
    Tensors found;
    for (const at::Tensor& p : network->parameters()) found.push_back(p.grad());
    return found;
  };
  drop_gradients(*network);
  CapturedStep captured = capture(
      [&](const Tensors& in) -> Tensors {
        const auto [y1, y2] = network->forward(in[0], in[1]);
        const at::Tensor loss = weighted(y1, y2);
        loss.backward();
        return {loss.detach()};
      },
      {x, y}, {.modules = {network}});
  drop_gradients(*network);
  captured.run({x, y});
  EXPECT_TRUE(same(gradients(), expected.gradients));

  drop_gradients(*network);
  const auto planned =
      remat({{"net", network,
              [&](const Tensors& in) -> Tensors {
                const auto [y1, y2] = network->forward(in[0], in[1]);
                return {y1, y2};
              }}},
            {x, y}, {.loss = [](const Tensors& out) { return weighted(out[0], out[1]); }});
  const Tensors out = planned->forward(Tensors{x, y});
  weighted(out[0], out[1]).backward();
  EXPECT_TRUE(same(gradients(), expected.gradients));
}

}  // namespace
}  // namespace reprise::runtime::nn
