// Alternatives that sum in another order are found when they are allowed, and only then. They leave
// gradients of the same numbers up to rounding, in the predicted bytes. Where a head by rows claims
// plain training's bits, it has them.
#include <torch/torch.h>

#include <random>

#include "forced_alternatives.h"
#include "reprise/model/errors.h"

namespace reprise::runtime::testing {
namespace {

namespace F = torch::nn::functional;

constexpr const char* kName = "linear-cross-entropy-by-rows";

struct RoundingCase {
  int64_t rows, width, classes;
  bool bias, weighted, ignored, summed, in_sequence, tied, scaled, frozen;
};

RoundingCase random_case(std::mt19937_64& random) {
  const auto between = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  const auto coin = [&] { return between(0, 1) == 1; };
  RoundingCase one{2 * between(1, 300),
           between(1, 24),
           between(2, 90),
           coin(),
           coin(),
           coin(),
           coin(),
           coin(),
           coin(),
           coin(),
           between(0, 3) == 0};
  if (one.tied) one.bias = false;
  return one;
}

struct Head : nn::Module {
  explicit Head(const RoundingCase& one) {
    embedding = register_parameter("embedding", at::randn({one.classes, one.width}));
    if (!one.tied) weight = register_parameter("weight", at::randn({one.classes, one.width}));
    if (one.bias) bias = register_parameter("bias", at::randn({one.classes}));
    if (one.frozen) embedding.requires_grad_(false);
  }

  at::Tensor embedding, weight, bias;
};

StepFunction step_of(const std::shared_ptr<Head>& head, const RoundingCase& one,
                     const at::Tensor& weights) {
  return [=](const Tensors& in) {
    at::Tensor x = at::embedding(head->embedding, in[0]);
    if (one.in_sequence) x = x.view({2, one.rows / 2, one.width});
    const at::Tensor& weight = one.tied ? head->embedding : head->weight;
    const at::Tensor logits = at::linear(at::tanh(x), weight, head->bias);
    auto options = F::CrossEntropyFuncOptions();
    if (one.weighted) options.weight(weights);
    if (one.ignored) options.ignore_index(1);
    if (one.summed) options.reduction(torch::kSum);
    const at::Tensor loss = F::cross_entropy(logits.flatten(0, -2), in[1], options);
    (one.scaled ? loss * 0.5 : loss).backward();
    return Tensors{loss};
  };
}

bool is_at_once(const Plan& plan) {
  return std::any_of(plan.actions.begin(), plan.actions.end(), [](const Action& action) {
    return action.id.find(".at-once") != std::string::npos;
  });
}

TEST(LinearCrossEntropy, LeavesGradientsUpToRounding) {
  install_cpu_allocator();
  at::manual_seed(3);
  std::mt19937_64 random(5);
  size_t used = 0, at_once = 0;
  for (int k = 0; k < 40; ++k) {
    const RoundingCase one = random_case(random);
    SCOPED_TRACE(
        fmt::format("{}: {}x{} to {}, bias {}, weighted {}, ignored {}, summed {}, tied {}, scaled "
                    "{}, frozen {}",
                    k, one.rows, one.width, one.classes, one.bias, one.weighted, one.ignored,
                    one.summed, one.tied, one.scaled, one.frozen));
    auto head = std::make_shared<Head>(one);
    const std::vector<Stage> stages{{"head", head, {}}};
    const at::Tensor ids = at::randint(one.classes, {one.rows}, at::kLong);
    at::Tensor target = at::randint(one.classes, {one.rows}, at::kLong);
    if (one.ignored) target[0] = 1;
    const at::Tensor weights = at::rand({one.classes}) + 0.1;
    const Tensors inputs{ids, target};
    const StepFunction step = step_of(head, one, weights);
    if (one.tied && one.frozen) continue;  // nothing to train
    CapturedStep captured(
        step, inputs,
        {.measure = quick(),
         .alternatives = {.only = {}, .without = {}, .allow = Exactness::kRounding}});
    drop_gradients(stages, inputs);
    const StepResult expected = snapshot(stages, inputs, step(inputs)[0]);
    for (const size_t pick : {0, 1}) {
      const Plan plan = forced(captured, kName, pick);
      used += uses(captured, plan, kName) > 0;
      at_once += is_at_once(plan);
      captured.use(plan);
      for (int n = 0; n < 2; ++n) {
        drop_gradients(stages, inputs);
        const StepResult now = snapshot(stages, inputs, captured.run(inputs));
        EXPECT_LT(apart(expected.loss, now.loss), 1e-5);
        ASSERT_EQ(expected.gradients.size(), now.gradients.size());
        for (size_t g = 0; g < expected.gradients.size(); ++g) {
          EXPECT_LT(apart(expected.gradients[g], now.gradients[g]), 1e-5) << "gradient " << g;
        }
        EXPECT_EQ(captured.last_step().predicted_peak, captured.last_step().measured_peak);
      }
    }
  }
  EXPECT_GT(used, 60U);
  EXPECT_GT(at_once, 10U);
}

// The step writes to what the head reads, behind the head. A later backward would see other
// numbers.
TEST(LinearCrossEntropy, StaysAsItIsWhereSomethingThatItReadsIsWritten) {
  install_cpu_allocator();
  const at::Tensor bias = at::randn({300}), weight = at::randn({300, 8}).requires_grad_();
  const Tensors inputs{at::randn({256, 8}), at::randint(300, {256}, at::kLong)};
  const StepFunction step = [&](const Tensors& in) {
    const at::Tensor loss = F::cross_entropy(at::linear(in[0], weight, bias), in[1]);
    {
      at::NoGradGuard no_grad;
      at::Tensor(bias).mul_(-1);
    }
    loss.backward();
    return Tensors{loss};
  };
  const CapturedStep captured(
      step, inputs,
      {.measure = quick(),
       .alternatives = {.only = {}, .without = {}, .allow = Exactness::kRounding}});
  for (const Choice& choice : captured.graph().choices) {
    EXPECT_TRUE(realizations_of(choice, kName).empty()) << choice.id;
  }
}

// Logits of many classes are most of the memory.
TEST(LinearCrossEntropy, TakesPartsOfTheLogits) {
  install_cpu_allocator();
  at::manual_seed(4);
  nn::Linear layer(16, 2000);
  const std::vector<Stage> stages{{"layer", layer.ptr(), {}}};
  const Tensors inputs{at::randn({2048, 16}), at::randint(2000, {2048}, at::kLong)};
  const StepFunction step = [&](const Tensors& in) {
    const at::Tensor loss = F::cross_entropy(layer->forward(in[0]), in[1]);
    loss.backward();
    return Tensors{loss};
  };
  const auto least = [&](Exactness allow) {
    CapturedStep captured(
        step, inputs,
        {.measure = quick(), .alternatives = {.only = {}, .without = {}, .allow = allow}});
    const Bytes level = captured.graph().fixed;
    return (plan(captured.graph(), {.budget = level, .planner = "graph", .allow = allow})
                .smallest_budget.value() -
            level)
        .count();
  };
  const int64_t logits = 4 * 2048 * 2000;
  EXPECT_LT(least(Exactness::kBitwise), logits / 4);
  EXPECT_LT(least(Exactness::kRounding), logits / 4);
}

// Random heads whose blocks leave the bits of the whole. Weights of classes make them round.
TEST(LinearCrossEntropy, LeavesTheSameBitsWhereItClaimsThem) {
  install_cpu_allocator();
  at::manual_seed(6);
  std::mt19937_64 random(9);
  size_t used = 0, at_once = 0;
  for (int k = 0; k < 8; ++k) {
    RoundingCase one = random_case(random);
    one.rows += 600;
    one.classes += 20;
    one.weighted = false;
    one.tied = one.frozen = false;
    SCOPED_TRACE(fmt::format("{}: {}x{} to {}, bias {}, ignored {}, summed {}, scaled {}", k,
                             one.rows, one.width, one.classes, one.bias, one.ignored, one.summed,
                             one.scaled));
    at::set_num_threads(k == 3 ? 2 : 1);
    auto head = std::make_shared<Head>(one);
    const std::vector<Stage> stages{{"head", head, {}}};
    const Tensors inputs{at::randint(one.classes, {one.rows}, at::kLong),
                         at::randint(one.classes, {one.rows}, at::kLong)};
    const StepFunction step = step_of(head, one, {});
    CapturedStep captured(step, inputs, {.measure = quick(), .alternatives = {.only = {kName}}});
    drop_gradients(stages, inputs);
    const Bits expected = bits_now(stages, inputs, step(inputs)[0]);
    const Plan plan = forced(captured, kName, static_cast<size_t>(k) / 2 % 2);
    used += uses(captured, plan, kName) > 0;
    at_once += is_at_once(plan);
    captured.use(plan);
    for (int n = 0; n < 2; ++n) {
      drop_gradients(stages, inputs);
      EXPECT_EQ(difference(expected, bits_now(stages, inputs, captured.run(inputs))).substr(0, 100),
                "");
      EXPECT_EQ(captured.last_step().predicted_peak, captured.last_step().measured_peak);
    }
  }
  at::set_num_threads(1);
  EXPECT_GT(used, 5U);  // on some machines, some shapes have no blocks with the same bits
  EXPECT_GT(at_once, 1U);
}

TEST(LinearCrossEntropy, IsUsedOnlyWhereItIsAllowed) {
  install_cpu_allocator();
  nn::Linear layer(8, 300);
  const at::Tensor weights = at::rand({300}) + 0.1;  // of classes: their sum has another order
  const Tensors inputs{at::randn({600, 8}), at::randint(300, {600}, at::kLong)};
  const StepFunction step = [&](const Tensors& in) {
    const at::Tensor loss = F::cross_entropy(layer->forward(in[0]), in[1],
                                             F::CrossEntropyFuncOptions().weight(weights));
    loss.backward();
    return Tensors{loss};
  };
  const auto has = [](const CapturedStep& captured) {
    return std::any_of(
        captured.graph().choices.begin(), captured.graph().choices.end(),
        [&](const Choice& choice) { return !realizations_of(choice, kName).empty(); });
  };
  EXPECT_FALSE(has(CapturedStep(step, inputs, {.measure = quick()})));

  CapturedStep captured(
      step, inputs,
      {.measure = quick(),
       .alternatives = {.only = {}, .without = {}, .allow = Exactness::kRounding}});
  ASSERT_TRUE(has(captured));
  const Bytes budget =
      *plan(captured.graph(),
            {.budget = captured.graph().fixed, .planner = "graph", .allow = Exactness::kRounding})
           .smallest_budget;
  captured.plan({.budget = budget});
  EXPECT_GT(uses(captured, *captured.planned().plan, kName), 0U);
  EXPECT_THROW(captured.plan({.budget = budget, .allow = Exactness::kBitwise}), BudgetError);

  try {
    CapturedStep(step, inputs, {.alternatives = {.only = {"forward-ad"}, .without = {}}});
    FAIL() << "was not refused";
  } catch (const InputError& e) {
    EXPECT_NE(std::string(e.what()).find("rounding"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace reprise::runtime::testing
