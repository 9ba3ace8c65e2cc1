// Tests codecs of captured steps: the forward keeps its bits, each value is within the bound that
// its codec states, and the backward computes with what was decoded and with nothing else.
#include <torch/torch.h>

#include <cmath>
#include <filesystem>
#include <limits>

#include "forced_alternatives.h"
#include "reprise/check/explain.h"
#include "reprise/io/json.h"
#include "reprise/model/errors.h"
#include "reprise/runtime/nn/group_codec.h"
#include "small_models.h"

namespace reprise::runtime::testing {
namespace {

using training::make_model;
using training::Model;

const std::vector<std::string> kCodecs{"compressed-8", "compressed-4", "olive-8", "olive-4"};

AlternativeOptions with_codec(const std::string& kind) {
  AlternativeOptions options = every_bitwise();
  options.only.push_back(kind);
  options.allow = Exactness::kApproximate;
  return options;
}

runtime::nn::GroupCodec codec_of(const std::string& kind) {
  return {.bits = kind.ends_with("8") ? 8 : 4,
          .kind = kind.starts_with("olive") ? runtime::nn::CodecKind::kOlive
                                            : runtime::nn::CodecKind::kRange};
}

bool has_realization(const Graph& graph, const std::string& kind) {
  return std::ranges::any_of(
      graph.choices, [&](const Choice& choice) { return !realizations_of(choice, kind).empty(); });
}

class CodecsTest : public ::testing::TestWithParam<std::string> {};

// Three ways to run a plan that encodes wherever it can: compared, bypassed, and as it is.
TEST_P(CodecsTest, ForcedTheyAreWithinTheirBoundsAndAloneInWhatTheyChange) {
  install_cpu_allocator();
  for (const char* model_name : {"resnet18", "gpt"}) {
    SCOPED_TRACE(model_name);
    at::manual_seed(5);
    ModelConfig config = small_config(model_name);
    if (config.model == "gpt") config.input = {4, 64};
    const Model model = make_model(config);
    const Tensors inputs{model.sample_input(), model.sample_target()};
    auto step = [&](const Tensors& in) {
      at::Tensor loss = model.loss(run_plain(model.stages, {in[0]}).at(0), in[1]);
      loss.backward();
      return loss;
    };
    const StepState state(model.stages, {inputs[0]});
    CapturedStep captured =
        capture(step, inputs, {.measure = quick(), .alternatives = with_codec(GetParam())});
    const auto run_now = [&](CodecCheck check) {
      captured.check_codecs(check);
      state.restore();
      drop_gradients(model.stages, {inputs[0]});
      const at::Tensor loss = captured.run(inputs);
      EXPECT_EQ(captured.last_step().predicted_peak, captured.last_step().measured_peak);
      return std::pair(snapshot(model.stages, {inputs[0]}, loss),
                       bits_now(model.stages, {inputs[0]}, loss));
    };
    state.restore();
    drop_gradients(model.stages, {inputs[0]});
    const at::Tensor plain_loss = step(inputs);
    const StepResult expected = snapshot(model.stages, {inputs[0]}, plain_loss);
    const Bits expected_bits = bits_now(model.stages, {inputs[0]}, plain_loss);

    const Plan plan = forced(captured, GetParam(), 0);
    EXPECT_GT(uses(captured, plan, GetParam()), 0U);
    captured.use(plan);
    for (int n = 0; n < 2; ++n) {  // on the heap, then in the arena
      const auto [compared, compared_bits] = run_now(CodecCheck::kCompare);
      EXPECT_TRUE(at::equal(compared.loss, expected.loss));
      double largest = 0;
      for (const ApproximateValue& value : captured.approximate_values()) {
        SCOPED_TRACE(value.op);
        EXPECT_EQ(value.alternative, GetParam());
        ASSERT_TRUE(value.error.has_value());
        EXPECT_LE(*value.error, value.bound);
        EXPECT_LT(value.kept * 3, value.plain);
        largest = std::max(largest, *value.error);
      }
      EXPECT_FALSE(captured.approximate_values().empty());
      EXPECT_GT(largest, 0);
      double difference_of_gradients = 0;
      for (size_t g = 0; g < expected.gradients.size(); ++g) {
        difference_of_gradients =
            std::max(difference_of_gradients, apart(expected.gradients[g], compared.gradients[g]));
      }
      EXPECT_GT(difference_of_gradients, 0);
      EXPECT_LT(difference_of_gradients, GetParam().ends_with("8") ? 0.2 : 2);
      const auto [bypassed, bypassed_bits] = run_now(CodecCheck::kBypass);
      EXPECT_EQ(difference(expected_bits, bypassed_bits).substr(0, 80), "");
      const auto [as_it_is, bits] = run_now(CodecCheck::kNone);
      EXPECT_EQ(difference(compared_bits, bits).substr(0, 80), "");
      EXPECT_FALSE(captured.approximate_values().front().error.has_value());
    }
    state.restore();
  }
}

// A network of a linear layer, GELU and a linear layer: its backward by the formulas, with the codec's
// own decoded values.
TEST_P(CodecsTest, GradientsAreThoseOfTheFormula) {
  install_cpu_allocator();
  at::manual_seed(3);
  torch::nn::Linear first(32, 128), second(128, 16);
  const std::vector<Stage> stages{{"first", first.ptr(), {}}, {"second", second.ptr(), {}}};
  const Tensors inputs{at::randn({256, 32}) * at::exp(at::randn({256, 1})), at::randn({256, 16})};
  const StepFunction step = [&](const Tensors& in) {
    const at::Tensor y = second->forward(at::gelu(first->forward(in[0])));
    const at::Tensor loss = (y * in[1]).sum() + y.square().mean();
    loss.backward();
    return Tensors{loss};
  };
  CapturedStep captured(
      step, inputs,
      {.measure = quick(),
       .alternatives = {.only = {GetParam()}, .without = {}, .allow = Exactness::kApproximate}});
  captured.use(forced(captured, GetParam(), 0));
  drop_gradients(stages, inputs);
  captured.check_codecs(CodecCheck::kCompare);
  captured.run(inputs);
  ASSERT_EQ(captured.approximate_values().size(), 2U);  // GELU's input and its result

  const at::NoGradGuard no_grad;
  const auto decoded = [&](const at::Tensor& x) {
    return runtime::nn::decode(runtime::nn::encode(x, codec_of(GetParam())));
  };
  const at::Tensor h = first->forward(inputs[0]), a = at::gelu(h), y = second->forward(a);
  const at::Tensor dy = inputs[1] + y * (2.0 / static_cast<double>(y.numel()));
  const at::Tensor of_second = at::mm(dy.t(), decoded(a));
  const at::Tensor dh = at::gelu_backward(at::mm(dy, second->weight), decoded(h));
  EXPECT_LT(apart(of_second, second->weight.grad()), 1e-5);
  EXPECT_LT(apart(at::mm(dh.t(), inputs[0]), first->weight.grad()), 1e-5);
  EXPECT_LT(apart(dh.sum(0), first->bias.grad()), 1e-5);
  // The bound of a weight's gradient: sums of |dy| times the bound of what it is multiplied with.
  const at::Tensor exact = at::mm(dy.t(), a);
  const double bound = runtime::nn::encode(a, codec_of(GetParam())).largest_error();
  const at::Tensor most = dy.abs().sum(0).view({-1, 1}) * bound + 1e-4;
  EXPECT_TRUE((exact - second->weight.grad()).abs().le(most).all().item<bool>());
}

INSTANTIATE_TEST_SUITE_P(Kinds, CodecsTest, ::testing::ValuesIn(kCodecs), [](const auto& param) {
  std::string name = param.param;
  std::ranges::replace(name, '-', '_');
  return name;
});

// A ReLU's backward needs to know which elements are above zero. A number a little off would say
// nothing about that.
TEST(Codecs, SidesOfKinksStayExact) {
  install_cpu_allocator();
  at::manual_seed(4);
  torch::nn::Linear first(32, 128), second(128, 16);
  const std::vector<Stage> stages{{"first", first.ptr(), {}}, {"second", second.ptr(), {}}};
  const Tensors inputs{at::randn({256, 32}), at::randn({256, 16})};
  const StepFunction step = [&](const Tensors& in) {
    const at::Tensor loss = (second->forward(at::relu(first->forward(in[0]))) * in[1]).sum();
    loss.backward();
    return Tensors{loss};
  };
  CapturedStep captured(step, inputs,
                        {.measure = quick(),
                         .alternatives = {.only = {"compressed-4", "one-bit-mask"},
                                          .without = {},
                                          .allow = Exactness::kApproximate}});
  drop_gradients(stages, inputs);
  step(inputs);
  // The gradients of the first layer do not depend on the size of ReLU's result.
  const at::Tensor exact = first->weight.grad().clone(), other = second->weight.grad().clone();
  for (const char* kind : {"compressed-4", "compressed-4+one-bit-mask"}) {
    SCOPED_TRACE(kind);
    ASSERT_TRUE(has_realization(captured.graph(), kind));
    captured.use(forced(captured, kind, 0));
    drop_gradients(stages, inputs);
    captured.run(inputs);
    EXPECT_TRUE(at::equal(first->weight.grad(), exact));
    EXPECT_FALSE(at::equal(second->weight.grad(), other));
  }
}

// A quotient magnifies what its divisor is off by, and has no bound.
TEST(Codecs, DivisorsStayExact) {
  install_cpu_allocator();
  at::manual_seed(4);
  torch::nn::Linear first(32, 128);
  const Tensors inputs{at::randn({256, 32})};
  const StepFunction step = [&](const Tensors& in) {
    const at::Tensor h = first->forward(in[0]).square() + 1e-3;
    const at::Tensor loss = (1 / h).mean() + h.log().mean() + h.sqrt().mean();
    loss.backward();
    return Tensors{loss};
  };
  const CapturedStep captured(step, inputs,
                              {.measure = quick(), .alternatives = with_codec("compressed-8")});
  size_t found = 0;
  for (const Choice& choice : captured.graph().choices) {
    for (const size_t r : realizations_of(choice, "compressed-8")) {
      for (const OpIndex op : choice.realizations[r].ops) {
        const std::string& id = captured.graph().ops[static_cast<size_t>(op)].id;
        if (id.find("of-decoded") == std::string::npos) continue;
        ++found;
        for (const char* quotient : {":div", ":reciprocal", ":log", ":sqrt"}) {
          EXPECT_EQ(id.find(quotient), std::string::npos) << id;
        }
      }
    }
  }
  EXPECT_GT(found, 0U);
}

struct Perceptrons {
  Perceptrons() {
    at::manual_seed(6);
    torch::nn::Sequential all;
    for (int k = 0; k < 4; ++k) {
      all->push_back(torch::nn::Linear(32, 256));
      all->push_back(torch::nn::GELU());
      all->push_back(torch::nn::Linear(256, 32));
    }
    net = all;
  }

  StepFunction step() const {
    return [net = net](const Tensors& in) mutable {
      const at::Tensor loss = (net->forward(in[0]) - in[1]).square().mean();
      loss.backward();
      return Tensors{loss};
    };
  }

  torch::nn::Sequential net{nullptr};
  const Tensors inputs{at::randn({512, 32}), at::randn({512, 32})};
};

TEST(Codecs, AreUsedOnlyWhereTheyAreAllowed) {
  install_cpu_allocator();
  const Perceptrons model;
  const auto captured = [&](const AlternativeOptions& options) {
    return CapturedStep(model.step(), model.inputs, {.measure = quick(), .alternatives = options});
  };
  EXPECT_FALSE(has_realization(captured({}).graph(), "compressed-8"));
  EXPECT_FALSE(has_realization(captured({.allow = Exactness::kRounding}).graph(), "compressed-8"));
  CapturedStep allowed = captured({.allow = Exactness::kApproximate});
  EXPECT_TRUE(has_realization(allowed.graph(), "compressed-8"));
  for (const char* named : {"compressed-4", "olive-8", "olive-4"}) {
    EXPECT_FALSE(has_realization(allowed.graph(), named)) << named;
  }
  try {
    captured({.only = {"compressed-8"}});
    FAIL() << "was not refused";
  } catch (const InputError& e) {
    EXPECT_NE(std::string(e.what()).find("approximate"), std::string::npos) << e.what();
  }

  // Where codecs take no time, a plan within half of plain training's bytes takes less with them.
  const Graph favoured = favouring(allowed.graph(), "compressed-8", 0);
  const Bytes budget((baseline(favoured).peak.count() + favoured.fixed.count()) / 2);
  const auto time = [&](Exactness allow) {
    return plan(favoured, {.budget = budget, .planner = "graph", .allow = allow}).plan.value().time;
  };
  EXPECT_LT(time(Exactness::kApproximate), time(Exactness::kBitwise));

  // The bound goes with the graph, and a plan says it.
  const Graph& graph = allowed.graph();
  allowed.use(forced(allowed, "compressed-8", 0));
  EXPECT_GT(allowed.approximate_values().size(), 0U);
  const Explanation explanation = explain(graph, *allowed.planned().plan);
  const auto use = std::ranges::find_if(explanation.alternatives, [](const AlternativeUse& one) {
    return one.kind.starts_with("compressed-8");
  });
  ASSERT_NE(use, explanation.alternatives.end());
  EXPECT_GT(use->error_ppm, 100);
  EXPECT_LE(use->error_ppm, 1'000'000 / 255 + 1);  // half a step of a range of twice the largest
  EXPECT_EQ(parse_graph(to_json(graph)), graph);
}

TEST(Codecs, CostsOfACacheHaveTheErrors) {
  install_cpu_allocator();
  const Perceptrons model;
  const std::string folder = ::testing::TempDir() + "reprise_codec_costs";
  CaptureOptions options{.measure = quick()};
  options.alternatives.allow = Exactness::kApproximate;
  options.cache = folder;
  const CapturedStep first(model.step(), model.inputs, options);
  const CapturedStep second(model.step(), model.inputs, options);
  EXPECT_TRUE(second.cache_use().found);
  EXPECT_EQ(first.graph(), second.graph());
  std::filesystem::remove_all(folder);
}

TEST(Codecs, SayWhatTheyCannotHold) {
  install_cpu_allocator();
  const Perceptrons model;
  CapturedStep captured(model.step(), model.inputs,
                        {.measure = quick(), .alternatives = with_codec("compressed-8")});
  captured.use(forced(captured, "compressed-8", 0));
  captured.check_codecs(CodecCheck::kCompare);
  Tensors wrong{model.inputs[0].clone(), model.inputs[1]};
  wrong[0][3][5] = std::numeric_limits<float>::infinity();
  captured.run(wrong);
  size_t lost = 0;
  for (const ApproximateValue& value : captured.approximate_values()) {
    lost += std::isnan(value.bound);
    EXPECT_EQ(std::isnan(value.bound), std::isnan(*value.error)) << value.op;
  }
  EXPECT_GT(lost, 0U);
}

}  // namespace
}  // namespace reprise::runtime::testing
