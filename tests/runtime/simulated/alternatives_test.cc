// Alternatives that need no kernels of the host run on devices: with the bits of the CPU where they
// claim plain training's, else up to rounding, and in the predicted bytes.
#include <torch/torch.h>

#include "device_models.h"
#include "forced_alternatives.h"

namespace reprise::runtime::testing {
namespace {

constexpr const char* kHead = "linear-cross-entropy-by-rows";

// The head of a language model: the loss, and the gradients of its input and its parameters.
Tensors head_step(nn::Linear layer, const at::Tensor& input, const at::Tensor& target) {
  const Tensors parameters = layer->parameters();
  for (const at::Tensor& each : parameters) each.mutable_grad() = at::Tensor();
  const at::Tensor leaf = input.detach().requires_grad_();
  const at::Tensor loss = torch::cross_entropy_loss(layer->forward(leaf), target);
  loss.backward();
  return {loss.detach(), leaf.grad()};
}

Tensors results(nn::Linear layer, const Tensors& returned) {
  Tensors all;
  for (const at::Tensor& each : returned) all.push_back(each.cpu().clone());
  for (const at::Tensor& each : layer->parameters()) all.push_back(each.grad().cpu().clone());
  return all;
}

TEST(AlternativesOfADevice, AHeadByRowsHasTheBitsThatItClaims) {
  const c10::Device device = sim::device(0);
  sim::take_reports();
  for (const bool bias : {false, true}) {
    SCOPED_TRACE(bias);
    at::manual_seed(4);
    nn::Linear layer(nn::LinearOptions(16, 2000).bias(bias));
    const at::Tensor input = at::randn({2048, 16}), target = at::randint(2000, {2048}, at::kLong);
    const Tensors wanted = results(layer, head_step(layer, input, target));
    layer->to(device);
    const Tensors inputs{input.to(device), target.to(device)};
    CapturedStep captured(
        [&](const Tensors& in) { return head_step(layer, in[0], in[1]); }, inputs,
        {.measure = once(), .alternatives = {.allow = Exactness::kRounding}});
    for (const Exactness allow : {Exactness::kBitwise, Exactness::kRounding}) {
      captured.plan({.budget = "100%", .time_limit = Nanos(500'000'000)});
      const int64_t plain = captured.planned().baseline.peak.count();
      // All logits of all rows are never there.
      const Bytes budget(memory_count(device).live + (plain - memory_count(device).live) / 3);
      try {
        captured.plan({.budget = budget, .time_limit = Nanos(2'000'000'000), .allow = allow});
      } catch (const BudgetError&) {
        ASSERT_TRUE(bias && allow == Exactness::kBitwise) << "sums of biases round differently";
        continue;
      }
      const Tensors found = results(layer, captured.run_all(inputs));
      ASSERT_EQ(found.size(), wanted.size());
      for (size_t k = 0; k < found.size(); ++k) {
        if (allow == Exactness::kBitwise) {
          EXPECT_TRUE(found[k].equal(wanted[k])) << k;
        } else {
          EXPECT_TRUE(found[k].allclose(wanted[k], 1e-4, 1e-7)) << k;
        }
      }
      EXPECT_EQ(captured.last_step().measured_peak, captured.last_step().predicted_peak);
      EXPECT_LE(captured.last_step().measured_peak, budget);
      EXPECT_GT(uses(captured, *captured.planned().plan, kHead), 0u);
    }
  }
  EXPECT_EQ(reports(), "");
}

// The head of a language model in 16 bits, whose loss is computed in 32.
TEST(AlternativesOfADevice, LogitsOf16BitsStayInPlaceOfThoseOf32) {
  const auto run = [](const Tensors& in) {
    const at::Tensor weight = in[1].detach().requires_grad_();
    const at::Tensor loss =
        torch::cross_entropy_loss(at::linear(in[0], weight).to(at::kFloat), in[2]);
    loss.backward();
    return Tensors{loss.detach(), weight.grad()};
  };
  at::manual_seed(4);
  Tensors inputs{at::randn({512, 16}).to(at::kBFloat16), at::randn({900, 16}).to(at::kBFloat16),
                 at::randint(900, {512}, at::kLong)};
  const Tensors wanted = run(inputs);
  for (at::Tensor& each : inputs) each = each.to(sim::device(0));
  CapturedStep captured(run, inputs, {.measure = once()});
  captured.use(forced(captured, "cross-entropy-from-logits", 0));
  EXPECT_GT(uses(captured, *captured.planned().plan, "cross-entropy-from-logits"), 0u);
  for (int call = 0; call < 2; ++call) {
    const Tensors found = captured.run_all(inputs);
    for (size_t k = 0; k < found.size(); ++k) EXPECT_TRUE(found[k].cpu().equal(wanted[k])) << k;
    EXPECT_EQ(captured.last_step().measured_peak, captured.last_step().predicted_peak);
  }
  EXPECT_EQ(reports(), "");
}

}  // namespace
}  // namespace reprise::runtime::testing
