// Steps that read numbers out of tensors: each call does what the plain step does, whichever way it
// goes, or is refused with what was read. A replay that meets another number leaves no trace.
#include <torch/optim/sgd.h>

#include "fixture.h"
#include "reprise/model/errors.h"
#include "reprise/runtime/capture.h"
#include "runtime/state/random_state.h"

namespace reprise::runtime {
namespace {

namespace nn = torch::nn;

constexpr int kCalls = 20;

// A Net is a model with buffers and random numbers.
struct NetImpl : nn::Module {
  NetImpl()
      : in(register_module("in", nn::Linear(16, 16))),
        norm(register_module("norm", nn::BatchNorm1d(16))),
        extra(register_module("extra", nn::Linear(16, 16))),
        out(register_module("out", nn::Linear(16, 4))) {}

  at::Tensor body(const at::Tensor& x) {
    return torch::dropout(norm(in(x)).relu(), 0.2, is_training());
  }

  nn::Linear in;
  nn::BatchNorm1d norm;
  nn::Linear extra, out;
};
TORCH_MODULE(Net);

using StepOf = std::function<StepFunction(Net)>;

struct HostReadsTest : testing::RuntimeTest {
  static Net copy_of(Net& net) {
    Net copy;
    const at::NoGradGuard no_grad;
    for (auto& named : copy->named_parameters()) {
      named.value().copy_(net->named_parameters()[named.key()]);
    }
    for (auto& named : copy->named_buffers()) {
      named.value().copy_(net->named_buffers()[named.key()]);
    }
    return copy;
  }

  static void expect_equal_nets(Net& a, Net& b, int call) {
    const auto mine = a->named_parameters(), others = b->named_parameters();
    for (const auto& named : mine) {
      const at::Tensor &p = named.value(), &q = others[named.key()];
      ASSERT_TRUE(at::equal(p, q)) << named.key() << " in call " << call;
      ASSERT_EQ(p.grad().defined(), q.grad().defined()) << named.key() << " in call " << call;
      ASSERT_TRUE(!p.grad().defined() || at::equal(p.grad(), q.grad())) << named.key() << call;
    }
    const auto buffers = a->named_buffers(), other_buffers = b->named_buffers();
    for (const auto& named : buffers) {
      ASSERT_TRUE(at::equal(named.value(), other_buffers[named.key()])) << named.key() << call;
    }
  }

  // Trains the plain step and its capture with the same inputs and random numbers. Returns the
  // capture's step, whose net is `net_`.
  CapturedStep train(const StepOf& step_of, const std::function<Tensors(int)>& inputs,
                     CaptureOptions options = {.on_miss = OnMiss::kRecapture},
                     const StepPlanOptions& planning = {}) {
    Net plain;
    net_ = copy_of(plain);
    options.modules = {net_.ptr()};
    torch::optim::SGD plain_sgd(plain->parameters(), 0.05), sgd(net_->parameters(), 0.05);
    const StepFunction expected = step_of(plain);
    CapturedStep step(step_of(net_), inputs(0), options);
    step.plan(planning);
    at::manual_seed(5);
    internal::state::RandomState mine(at::kCPU), others(at::kCPU);
    for (int call = 0; call < kCalls; ++call) {
      const Tensors given = inputs(call);
      plain_sgd.zero_grad();
      sgd.zero_grad();
      others.restore();
      const Tensors wanted = expected(given);
      others = internal::state::RandomState(at::kCPU);
      mine.restore();
      const Tensors found = step.run_all(given);
      mine = internal::state::RandomState(at::kCPU);
      EXPECT_TRUE(mine == others) << "random state in call " << call;
      EXPECT_EQ(wanted.size(), found.size());
      for (size_t i = 0; i < wanted.size(); ++i) {
        EXPECT_TRUE(at::equal(wanted[i], found[i])) << "output " << i << " in call " << call;
      }
      expect_equal_nets(plain, net_, call);
      plain_sgd.step();
      sgd.step();
      const CapturedStepReport report = step.last_step();
      EXPECT_EQ(report.predicted_peak, report.measured_peak) << call;
      if (HasFailure()) break;
    }
    return step;
  }

  static std::function<Tensors(int)> rows() {
    return [](int call) {
      at::manual_seed(100 + call);
      return Tensors{at::randn({256, 16})};
    };
  }

  Net net_{nullptr};
};

// The layer is left out where a random number says so, as the layer drop of speech models does.
StepFunction with_layer_drop(Net net) {
  return [net](const Tensors& inputs) mutable -> Tensors {
    at::Tensor x = net->body(inputs[0]);
    if (!(at::rand({}) < 0.5).item<bool>()) x = net->extra(x).tanh();
    const at::Tensor loss = net->out(x).square().mean();
    loss.backward();
    return {loss.detach()};
  };
}

TEST_F(HostReadsTest, ARandomBranchIsPlainTrainingsOverManyCalls) {
  const CapturedStep step = train(with_layer_drop, rows());
  EXPECT_EQ(step.outcomes().size(), 2U);
}

TEST_F(HostReadsTest, ARandomBranchWithinABudget) {
  train(with_layer_drop, rows(), {.on_miss = OnMiss::kRecapture}, {.budget = "95%"});
}

TEST_F(HostReadsTest, ACondition) {
  const StepOf step_of = [](Net net) {
    return [net](const Tensors& inputs) mutable -> Tensors {
      at::Tensor x = net->body(inputs[0]);
      if ((inputs[0].sum() > 0).item<bool>()) x = net->extra(x);
      const at::Tensor loss = net->out(x).square().mean();
      loss.backward();
      return {loss.detach()};
    };
  };
  EXPECT_EQ(train(step_of, rows()).outcomes().size(), 2U);
}

TEST_F(HostReadsTest, ASizeThatComesFromAValue) {
  const StepOf step_of = [](Net net) {
    return [net](const Tensors& inputs) mutable -> Tensors {
      const int64_t longest = inputs[1].max().item<int64_t>();
      const at::Tensor loss = net->out(net->body(inputs[0]).slice(0, 0, longest)).square().mean();
      loss.backward();
      return {loss.detach()};
    };
  };
  const CapturedStep step = train(step_of, [](int call) {
    at::manual_seed(100 + call);
    return Tensors{at::randn({8, 16}), at::full({3}, 2 + call % 3, at::kLong)};
  });
  EXPECT_EQ(step.outcomes().size(), 3U);
  EXPECT_EQ(step.host_reads().size(), 1U);
}

TEST_F(HostReadsTest, WhatAMaskSelects) {
  for (const int way : {0, 1, 2}) {
    const StepOf step_of = [way](Net net) {
      return [net, way](const Tensors& inputs) mutable -> Tensors {
        const at::Tensor x = net->body(inputs[0]), mask = inputs[1];
        const at::Tensor chosen = way == 0   ? x.index({mask})
                                  : way == 1 ? x.masked_select(mask.unsqueeze(1)).view({-1, 16})
                                             : x.index({mask.nonzero().squeeze(1)});
        const at::Tensor loss = net->out(chosen).square().sum();
        loss.backward();
        return {loss.detach()};
      };
    };
    const CapturedStep step = train(step_of, [](int call) {
      at::manual_seed(100 + call);
      const int64_t count = 3 + (call / 4) % 2;
      return Tensors{at::randn({8, 16}), at::randperm(8) < count};
    });
    EXPECT_EQ(step.outcomes().size(), 2U) << way;
  }
}

TEST_F(HostReadsTest, TwoReadsOfWhichTheSecondDependsOnTheFirst) {
  const StepOf step_of = [](Net net) {
    return [net](const Tensors& inputs) mutable -> Tensors {
      at::Tensor x = net->body(inputs[0]);
      if ((at::rand({}) < 0.5).item<bool>()) {
        x = net->extra(x);
        if (at::equal(inputs[1], at::zeros_like(inputs[1]))) x = x * 2;
      } else if ((at::rand({}) < 0.5).item<bool>()) {
        x = x.sin();
      }
      const at::Tensor loss = net->out(x).square().mean();
      loss.backward();
      return {loss.detach()};
    };
  };
  const auto inputs = [](int call) {
    at::manual_seed(100 + call);
    return Tensors{at::randn({8, 16}), at::full({2}, call % 3 == 0 ? 1.0 : 0.0)};
  };
  EXPECT_EQ(train(step_of, inputs).outcomes().size(), 4U);
  const CapturedStep two = train(step_of, inputs, {.on_miss = OnMiss::kRecapture, .outcomes = 2});
  EXPECT_EQ(two.outcomes().size(), 2U);
}

TEST_F(HostReadsTest, AReadBehindTheBackward) {
  const StepOf step_of = [](Net net) {
    return [net](const Tensors& inputs) mutable -> Tensors {
      const at::Tensor loss = net->out(net->body(inputs[0])).square().mean();
      loss.backward();
      at::Tensor scale = at::ones({});
      if ((net->out->weight.grad().abs().max() > 0.1).item<bool>()) scale = scale * 0.5;
      return {loss.detach(), scale};
    };
  };
  train(step_of, rows());
}

// An update cannot be taken back, so all updates stand behind the last read.
TEST_F(HostReadsTest, NoParameterIsUpdatedBeforeTheLastRead) {
  Net plain;
  net_ = copy_of(plain);
  const StepOf step_of = [](Net net) {
    return [net](const Tensors& inputs) mutable -> Tensors {
      const at::Tensor loss = net->out(net->body(inputs[0])).square().mean();
      loss.backward();
      at::Tensor scale = at::ones({});
      if ((inputs[0].sum() > 0).item<bool>()) scale = scale * 0.5;
      return {loss.detach(), scale};
    };
  };
  torch::optim::SGD plain_sgd(plain->parameters(), 0.05), sgd(net_->parameters(), 0.05);
  const StepFunction expected = step_of(plain);
  CapturedStep step(
      step_of(net_), rows()(0),
      {.modules = {net_.ptr()}, .on_miss = OnMiss::kRecapture, .optimizer = per_parameter(sgd)});
  step.plan({.budget = "90%", .time_limit = Nanos(300'000'000)});
  bool behind = false;
  for (const Op& op : step.graph().ops) {
    if (op.id.find("expect_number") != std::string::npos) behind = true;
    if (op.id.find("update.") != std::string::npos) {
      EXPECT_TRUE(behind) << op.id;
    }
  }
  EXPECT_TRUE(behind);
  for (int call = 0; call < kCalls; ++call) {
    const Tensors given = rows()(call);
    plain_sgd.zero_grad();
    at::manual_seed(call);
    const Tensors wanted = expected(given);
    plain_sgd.step();
    plain_sgd.zero_grad();
    at::manual_seed(call);
    const Tensors found = step.run_all(given);
    ASSERT_TRUE(at::equal(wanted[0], found[0]) && at::equal(wanted[1], found[1])) << call;
    expect_equal_nets(plain, net_, call);
    if (HasFailure()) return;
  }
  EXPECT_EQ(step.outcomes().size(), 2U);
}

TEST_F(HostReadsTest, ARefusedCallLeavesNoTrace) {
  Net net;
  const StepFunction function = [net](const Tensors& inputs) mutable -> Tensors {
    at::Tensor x = net->body(inputs[0]);  // writes statistics and draws
    if ((inputs[0].sum() > 0).item<bool>()) x = net->extra(x);
    const at::Tensor loss = net->out(x).square().mean();
    loss.backward();
    return {loss.detach()};
  };
  const at::Tensor up = at::randn({8, 16}).abs(), down = -up;
  CapturedStep step(function, {up}, {.modules = {net.ptr()}});
  for (int round = 0; round < 3; ++round) {
    step.run({up});
    const at::Tensor mean = net->norm->running_mean.clone();
    const at::Tensor count = net->norm->num_batches_tracked.clone();
    const at::Tensor gradient = net->in->weight.grad().clone();
    const internal::state::RandomState random(at::kCPU);
    try {
      step.run({down});
      FAIL() << "the other branch was not noticed";
    } catch (const InputError& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("was True and is False"), std::string::npos) << text;
      EXPECT_NE(text.find("Nothing was changed"), std::string::npos) << text;
    }
    EXPECT_TRUE(at::equal(mean, net->norm->running_mean));
    EXPECT_TRUE(at::equal(count, net->norm->num_batches_tracked));
    EXPECT_TRUE(at::equal(gradient, net->in->weight.grad()));
    EXPECT_TRUE(random.is_now());
  }
  EXPECT_EQ(step.outcomes().size(), 1U);
  EXPECT_GT(step.last_step().served, 0);  // The arena stays.
}

TEST_F(HostReadsTest, NumbersThatAreNotWholeAreRefused) {
  Net net;
  const StepFunction function = [net](const Tensors& inputs) mutable -> Tensors {
    const at::Tensor loss = net->out(net->body(inputs[0])).square().mean();
    (loss * (1.0 / loss.item<double>())).backward();
    return {loss.detach()};
  };
  try {
    CapturedStep step(function, {at::randn({8, 16})}, {});
    FAIL();
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()).find("not whole"), std::string::npos) << error.what();
  }
}

TEST_F(HostReadsTest, ANumberOfThisRunAloneIsRefused) {
  int64_t run = 0;
  const StepFunction function = [&run](const Tensors& inputs) -> Tensors {
    const at::Tensor count = at::full({}, 0, at::kLong);
    count.data_ptr<int64_t>()[0] = ++run;
    const at::Tensor x = inputs[0] * 2;
    if (count.item<int64_t>() > 1000) return {x * 2};
    return {x.sum()};
  };
  EXPECT_THROW(CapturedStep(function, {at::randn({8, 16})}, {}), InputError);
}

// Gradients are dropped before a replay begins. Behind a read it may be a step that keeps them.
TEST_F(HostReadsTest, GradientsThatAreDroppedBehindAReadMustNotBeThere) {
  nn::Linear layer(4, 4);
  const auto step_of = [&](bool read_first) -> StepFunction {
    return [layer, read_first](const Tensors& inputs) mutable -> Tensors {
      if (!read_first) layer->zero_grad();
      const bool drop = (inputs[0].sum() > 0).item<bool>();
      if (read_first && drop) layer->zero_grad();
      const at::Tensor loss = layer(inputs[0]).square().mean();
      loss.backward();
      return {loss.detach()};
    };
  };
  const at::Tensor x = at::ones({2, 4});
  CapturedStep first(step_of(false), {x}, {.modules = {layer.ptr()}});
  CapturedStep behind(step_of(true), {x}, {.modules = {layer.ptr()}});
  first.run({x});
  first.run({x});
  EXPECT_THROW(behind.run({x}), InputError);
  layer->zero_grad();
  behind.run({x});
}

TEST_F(HostReadsTest, GuardsAreOperationsThatRunOnceAndInOrder) {
  Net net;
  CapturedStep step(with_layer_drop(net), {at::randn({8, 16})}, {.modules = {net.ptr()}});
  int guards = 0;
  for (const Op& op : step.graph().ops) {
    if (op.id.find("reprise::expect_number") == std::string::npos) continue;
    ++guards;
    EXPECT_TRUE(op.once);
    EXPECT_FALSE(op.variants.at(0).reads.empty());
    EXPECT_TRUE(op.variants.at(0).writes.empty());
  }
  EXPECT_EQ(guards, 1);
  ASSERT_EQ(step.host_reads().size(), 1U);
  EXPECT_NE(step.host_reads()[0].find("out of a tensor"), std::string::npos);
}

}  // namespace
}  // namespace reprise::runtime
