// A convolution runs with its batch norm in parts along the batch. The statistics are those of the
// whole batch, so that loss, gradients and running statistics are plain training's up to rounding,
// in the predicted bytes.
#include <torch/torch.h>

#include <random>

#include "forced_alternatives.h"
#include "reprise/model/errors.h"
#include "support/scale.h"

namespace reprise::runtime::testing {
namespace {

constexpr const char* kName = "batch-norm-by-samples";

CaptureOptions rounding_allowed() {
  return {.measure = quick(),
          .alternatives = {.only = {}, .without = {}, .allow = Exactness::kRounding}};
}

const std::vector<std::pair<const char*, std::function<at::Tensor(const at::Tensor&)>>>&
activation_functions() {
  static const std::vector<std::pair<const char*, std::function<at::Tensor(const at::Tensor&)>>>
      all = {
          {"none", [](const at::Tensor& x) { return x; }},
          {"relu", [](const at::Tensor& x) { return at::relu(x); }},
          {"relu_", [](at::Tensor x) { return x.relu_(); }},
          {"relu6_", [](at::Tensor x) { return at::hardtanh_(x, 0, 6); }},
          {"leaky", [](const at::Tensor& x) { return at::leaky_relu(x, 0.2); }},
          {"silu", [](const at::Tensor& x) { return at::silu(x); }},
          {"gelu", [](const at::Tensor& x) { return at::gelu(x); }},
          {"elu_", [](at::Tensor x) { return at::elu_(x); }},
      };
  return all;
}

struct NormCase {
  int64_t batch, channels, outputs, groups, kernel, stride, side, layout, activation;
  bool bias, affine, tracks, transposed, pooled, wants_input, of_double;
};

NormCase random_case(Random& random) {
  const auto coin = [&] { return between(random, 0, 1) == 1; };
  const int64_t groups = between(random, 1, 2);
  return {.batch = between(random, 2, 11),
          .channels = groups * between(random, 1, 3),
          .outputs = groups * between(random, 2, 5),
          .groups = groups,
          .kernel = between(random, 1, 3),
          .stride = between(random, 1, 2),
          .side = between(random, 6, 12),
          .layout = between(random, 0, 1),
          .activation = between(random, 0, std::ssize(activation_functions()) - 1),
          .bias = coin(),
          .affine = between(random, 0, 3) > 0,
          .tracks = between(random, 0, 3) > 0,
          .transposed = between(random, 0, 4) == 0,
          .pooled = coin(),
          .wants_input = coin(),
          .of_double = coin()};
}

// The parameters have such sizes that nothing else in the step is larger than the convolution's
// result.
struct Layer : nn::Module {
  explicit Layer(const NormCase& one) : one_(one) {
    const int64_t k = one.kernel;
    weight_ = register_parameter(
        "weight", one.transposed ? at::randn({one.channels, one.outputs / one.groups, k, k})
                                 : at::randn({one.outputs, one.channels / one.groups, k, k}));
    if (one.bias) bias_ = register_parameter("bias", at::randn({one.outputs}));
    norm_ = register_module("norm", nn::BatchNorm2d(nn::BatchNorm2dOptions(one.outputs)
                                                        .affine(one.affine)
                                                        .track_running_stats(one.tracks)
                                                        .momentum(0.3)));
  }

  at::Tensor forward(const at::Tensor& x) {
    const std::vector<int64_t> stride(2, one_.stride), ones(2, 1), none(2, 0);
    at::Tensor y =
        at::convolution(x, weight_, bias_, stride, none, ones, one_.transposed, none, one_.groups);
    y = activation_functions()[static_cast<size_t>(one_.activation)].second(norm_->forward(y));
    return one_.pooled ? at::max_pool2d(y, 2) : y;
  }

 private:
  NormCase one_;
  at::Tensor weight_, bias_;
  nn::BatchNorm2d norm_{nullptr};
};

// A bias in front of a batch norm has a gradient of rounding errors only. So differences are
// compared with the largest number of all.
void expect_close(const Tensors& expected, const Tensors& now, double tolerance) {
  ASSERT_EQ(expected.size(), now.size());
  double largest = 1e-20;
  for (const at::Tensor& one : expected) {
    if (one.defined()) largest = std::max(largest, one.abs().max().item<double>());
  }
  for (size_t k = 0; k < expected.size(); ++k) {
    ASSERT_EQ(expected[k].defined(), now[k].defined()) << k;
    if (!expected[k].defined()) continue;
    EXPECT_LT((expected[k] - now[k]).abs().max().item<double>(), tolerance * largest) << k;
  }
}

TEST(BatchNormBySamples, IsPlainTrainingsUpToRounding) {
  install_cpu_allocator();
  at::manual_seed(7);
  Random random(7);
  std::map<std::string, size_t> used;  // by activation
  size_t pooled = 0;
  for (int k = 0; k < 60; ++k) {
    const NormCase one = random_case(random);
    const char* activation = activation_functions()[static_cast<size_t>(one.activation)].first;
    SCOPED_TRACE(fmt::format(
        "{}: {}x{}x{} to {}, {} groups, kernel {}, stride {}, layout {}, {}, bias {}, affine {}, "
        "tracks {}, transposed {}, pooled {}, input {}, double {}",
        k, one.batch, one.channels, one.side, one.outputs, one.groups, one.kernel, one.stride,
        one.layout, activation, one.bias, one.affine, one.tracks, one.transposed, one.pooled,
        one.wants_input, one.of_double));
    auto layer = std::make_shared<Layer>(one);
    at::Tensor x = at::randn({one.batch, one.channels, one.side, one.side + 1});
    if (one.layout == 1) x = x.contiguous(at::MemoryFormat::ChannelsLast);
    if (one.of_double) {
      layer->to(at::kDouble);
      x = x.to(at::kDouble);
    }
    const std::vector<Stage> stages{{"layer", layer, {}}};
    const Tensors inputs{x.requires_grad_(one.wants_input)};
    const StepFunction step = [&](const Tensors& in) {
      const at::Tensor y = layer->forward(in[0]);
      const at::Tensor loss = (y * at::tanh(y + 0.3)).mean() * 7;
      loss.backward();
      return Tensors{loss};
    };
    const StepState state(stages, inputs);
    CapturedStep captured(step, inputs, rounding_allowed());
    state.restore();
    drop_gradients(stages, inputs);
    const StepResult expected = snapshot(stages, inputs, step(inputs)[0]);
    for (const size_t pick : {0, 1, 2}) {
      const Plan plan = forced(captured, kName, pick);
      if (uses(captured, plan, kName) > 0) {
        ++used[activation];
        pooled += one.pooled;
      }
      captured.use(plan);
      for (int n = 0; n < 2; ++n) {
        SCOPED_TRACE(fmt::format("way {}, step {}", pick, n));
        state.restore();
        drop_gradients(stages, inputs);
        const StepResult now = snapshot(stages, inputs, captured.run(inputs));
        const double tolerance = one.of_double ? 1e-12 : 2e-5;
        EXPECT_LT(apart(expected.loss, now.loss), tolerance);
        expect_close(expected.gradients, now.gradients, tolerance);
        ASSERT_EQ(expected.buffers.size(), now.buffers.size());
        for (size_t b = 0; b < expected.buffers.size(); ++b) {
          EXPECT_LT(apart(expected.buffers[b].to(at::kDouble), now.buffers[b].to(at::kDouble)),
                    tolerance);
        }
        EXPECT_EQ(captured.last_step().predicted_peak, captured.last_step().measured_peak);
      }
    }
  }
  for (const auto& [name, apply] : activation_functions()) EXPECT_GT(used[name], 2U) << name;
  EXPECT_GT(pooled, 20U);
}

// This is a stem: the tensors between its convolution and its pooling are most of the memory of the
// step.
struct Stem : nn::Module {
  Stem() {
    convolution = register_module("convolution",
                                  nn::Conv2d(nn::Conv2dOptions(3, 32, 3).padding(1).bias(false)));
    norm = register_module("norm", nn::BatchNorm2d(32));
    head = register_module("head", nn::Linear(32, 5));
  }

  at::Tensor loss(const Tensors& in) {
    const at::Tensor y = at::max_pool2d(norm->forward(convolution->forward(in[0])).relu_(), 4);
    return torch::nn::functional::cross_entropy(head->forward(y.mean({2, 3})), in[1]);
  }

  nn::Conv2d convolution{nullptr};
  nn::BatchNorm2d norm{nullptr};
  nn::Linear head{nullptr};
};

class StemInParts : public ::testing::Test {
 protected:
  void SetUp() override {
    install_cpu_allocator();
    at::manual_seed(8);
    stem_ = std::make_shared<Stem>();
    inputs_ = {at::randn({16, 3, 32, 32}), at::randint(5, {16}, at::kLong)};
  }

  Tensors step(const Tensors& in) {
    const at::Tensor loss = stem_->loss(in);
    loss.backward();
    return {loss};
  }

  CapturedStep capture(CaptureOptions options) {
    return CapturedStep([this](const Tensors& in) { return step(in); }, inputs_,
                        std::move(options));
  }

  // Every operation gets the same time, because measured times lead the search to another place
  // each time.
  static Bytes least(const CapturedStep& captured, Exactness allow) {
    Graph graph = captured.graph();
    for (Op& op : graph.ops) {
      for (Variant& variant : op.variants) variant.time = Nanos(1000);
    }
    const Bytes level = graph.fixed;
    const PlanResult result = plan(graph, {.budget = level, .planner = "graph", .allow = allow});
    return *result.smallest_budget - level;
  }

  std::shared_ptr<Stem> stem_;
  Tensors inputs_;
};

TEST_F(StemInParts, NeverHasTheWidestTensorAsAWhole) {
  const int64_t widest = 4 * 16 * 32 * 32 * 32;
  const CapturedStep captured = capture(rounding_allowed());
  EXPECT_GT(least(captured, Exactness::kBitwise).count(), widest);
  EXPECT_LT(least(captured, Exactness::kRounding).count(), widest * 3 / 4);
}

// The other alternatives of its operations are there as before, one by one and together.
TEST_F(StemInParts, TakesNothingFromTheOthers) {
  const CapturedStep with = capture(rounding_allowed()), without = capture({.measure = quick()});
  const Choice* stem = nullptr;
  for (const Choice& choice : with.graph().choices) {
    if (!realizations_of(choice, kName).empty()) stem = &choice;
  }
  ASSERT_NE(stem, nullptr);
  for (const Choice& choice : without.graph().choices) {
    for (size_t r = 1; r < choice.realizations.size(); ++r) {
      const std::string& name = choice.realizations[r].name;
      const bool is_there =
          std::any_of(with.graph().choices.begin(), with.graph().choices.end(),
                      [&](const Choice& one) { return !realizations_of(one, name).empty(); });
      EXPECT_TRUE(is_there) << choice.id << ": " << name;
    }
  }
  EXPECT_FALSE(realizations_of(*stem, "one-bit-mask+small-indices").empty()) << stem->id;
  EXPECT_LE(least(with, Exactness::kBitwise), least(without, Exactness::kBitwise));
}

TEST_F(StemInParts, EveryWayOfTheOthersLeavesTheBits) {
  const std::vector<Stage> stages{{"stem", stem_, {}}};
  const StepState state(stages, inputs_);
  CapturedStep captured = capture(rounding_allowed());
  state.restore();
  drop_gradients(stages, inputs_);
  const Bits expected = bits_now(stages, inputs_, step(inputs_)[0]);
  for (const char* name : {"one-bit-mask", "small-indices", "one-bit-mask+small-indices"}) {
    SCOPED_TRACE(name);
    const Plan plan = forced(captured, name, 0);
    EXPECT_GT(uses(captured, plan, name), 0U);
    captured.use(plan);
    for (int n = 0; n < 2; ++n) {
      state.restore();
      drop_gradients(stages, inputs_);
      const at::Tensor loss = captured.run(inputs_);
      EXPECT_EQ(difference(expected, bits_now(stages, inputs_, loss)), "");
      EXPECT_EQ(captured.last_step().predicted_peak, captured.last_step().measured_peak);
    }
  }
}

TEST_F(StemInParts, IsThereOnlyWhereItIsAllowed) {
  const auto has = [](const CapturedStep& captured) {
    return std::any_of(
        captured.graph().choices.begin(), captured.graph().choices.end(),
        [](const Choice& choice) { return !realizations_of(choice, kName).empty(); });
  };
  EXPECT_FALSE(has(capture({.measure = quick()})));
  CaptureOptions without = rounding_allowed();
  without.alternatives.without = {kName};
  EXPECT_FALSE(has(capture(without)));
  EXPECT_TRUE(has(capture(rounding_allowed())));
}

// All of these stay as they are: statistics that another operation in the step reads, weights that
// are written behind the forward pass, a batch norm in evaluation, and results that somebody else
// wants.
TEST_F(StemInParts, IsNotTriedWhereItWouldBeSomethingElse) {
  const auto is_found = [&](const std::function<at::Tensor(const Tensors&)>& loss_of) {
    const StepFunction step = [&](const Tensors& in) {
      const at::Tensor loss = loss_of(in);
      loss.backward();
      return Tensors{loss};
    };
    const CapturedStep captured(step, inputs_, rounding_allowed());
    return std::any_of(
        captured.graph().choices.begin(), captured.graph().choices.end(),
        [](const Choice& choice) { return !realizations_of(choice, kName).empty(); });
  };
  const auto wide = [&](const Tensors& in) { return stem_->convolution->forward(in[0]); };
  EXPECT_TRUE(is_found(
      [&](const Tensors& in) { return stem_->norm->forward(wide(in)).relu().square().mean(); }));
  EXPECT_FALSE(is_found([&](const Tensors& in) {
    const at::Tensor x = wide(in);
    return (stem_->norm->forward(x).relu() * x).mean();
  })) << "the convolution's result has another reader";
  const at::Tensor shift = at::ones({32});
  EXPECT_FALSE(is_found([&](const Tensors& in) {
    const at::Tensor y = at::batch_norm(wide(in), {}, shift, {}, {}, true, 0.1, 1e-5, false);
    at::Tensor(shift).mul_(1.5);
    return y.relu().square().mean();
  })) << "the backward would add another shift";
  stem_->norm->eval();
  EXPECT_FALSE(is_found([&](const Tensors& in) {
    return stem_->norm->forward(wide(in)).relu().square().mean();
  })) << "running statistics";
}

// An alternative that is allowed in addition is never a reason for a slower plan.
TEST_F(StemInParts, IsNeverSlowerThanWithout) {
  const CapturedStep captured = capture(rounding_allowed());
  const Bytes level = captured.graph().fixed, peak = baseline(captured.graph()).peak;
  const bool all_budgets = reprise::testing::full_tests();
  for (const int percent : all_budgets ? std::vector{95, 85, 75, 65, 55} : std::vector{95}) {
    const Bytes budget(level.count() + (peak - level).count() * percent / 100);
    const auto time = [&](Exactness allow) -> std::optional<Nanos> {
      const PlanResult result = plan(captured.graph(), {.budget = budget,
                                                        .planner = "graph",
                                                        .time_limit = reprise::testing::kNoTimeLimit,
                                                        .allow = allow});
      return result.plan ? std::optional(result.plan->time) : std::nullopt;
    };
    const auto exact = time(Exactness::kBitwise), all = time(Exactness::kRounding);
    if (!exact) continue;
    ASSERT_TRUE(all) << percent;
    EXPECT_LE(*all, *exact) << percent;
  }
}

}  // namespace
}  // namespace reprise::runtime::testing
