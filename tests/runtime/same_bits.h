// Compares steps with forced alternatives with the operations that they stand for, on numbers
// around the kinks of activations.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "forced_alternatives.h"

namespace reprise::runtime::testing {

using Function = std::function<at::Tensor(const at::Tensor&)>;

struct Activation {
  const char* name;
  Function apply;
  std::vector<double> kinks;  // where its formula changes, or its result ends
};

// Puts special numbers among random ones: the kinks and their neighbours, zeros of both signs,
// subnormal and large numbers.
inline at::Tensor around(const std::vector<double>& kinks, at::Tensor x) {
  const double tiny = x.scalar_type() == at::kDouble ? 1e-310 : 1e-40;
  std::vector<double> special{0.0, -0.0, tiny, -tiny, 1e4, -1e4};
  for (const double kink : kinks) {
    for (const double step : {0.0, 1e-7, -1e-7, 1e-2, -1e-2, 0.5, -0.5}) {
      special.push_back(kink * (1 + step) + (kink == 0 ? step : 0));
    }
  }
  at::Tensor flat = x.flatten();
  for (int64_t i = 0; i < flat.numel(); i += 3) {
    flat[i] = special[static_cast<size_t>(i / 3) % special.size()];
  }
  return flat.view(x.sizes());
}

// Counts where a plan may use alternatives, and how often it did.
struct Coverage {
  std::map<std::string, size_t> uses;  // by kind and what it was tried on
};

// Runs the plan in force twice, on the heap and in the arena. Both steps must have the expected bits
// and the predicted peak.
inline void expect_two_steps(CapturedStep& captured, const std::vector<Stage>& stages,
                             const Tensors& inputs, const StepState& state, const Bits& expected,
                             size_t pick) {
  for (int n = 0; n < 2; ++n) {
    SCOPED_TRACE(fmt::format("way {}, step {}", pick, n));
    state.restore();
    drop_gradients(stages, inputs);
    const at::Tensor loss = captured.run(inputs);
    EXPECT_EQ(difference(expected, bits_now(stages, inputs, loss)).substr(0, 100), "");
    EXPECT_EQ(captured.last_step().predicted_peak, captured.last_step().measured_peak);
  }
}

// Runs one step with alternatives of a kind (empty: of all), on the heap and in the arena.
inline void expect_same_bits(const std::shared_ptr<nn::Module>& module, const Tensors& inputs,
                             const StepFunction& step, const std::string& what, Coverage& coverage,
                             const std::string& wanted = "") {
  const std::vector<Stage> stages{{"all", module, {}}};
  const StepState state(stages, inputs);
  CapturedStep captured(step, inputs, {.measure = quick(), .alternatives = every_bitwise()});
  state.restore();
  drop_gradients(stages, inputs);
  const Bits expected = bits_now(stages, inputs, step(inputs)[0]);
  const size_t ways = std::clamp<size_t>(ways_of(captured.graph(), wanted), 1, 4);
  for (size_t pick = 0; pick < ways; ++pick) {
    const Plan plan = forced(captured, wanted, pick);
    for (const AlternativeInfo& kind : alternatives()) {
      coverage.uses[kind.name + " of " + what] += uses(captured, plan, kind.name);
    }
    captured.use(plan);
    expect_two_steps(captured, stages, inputs, state, expected, pick);
  }
  state.restore();
}

inline const std::vector<std::pair<std::string, at::ScalarType>>& types() {
  static const std::vector<std::pair<std::string, at::ScalarType>> all = {
      {"float32", at::kFloat}, {"bfloat16", at::kBFloat16}, {"float64", at::kDouble}};
  return all;
}

}  // namespace reprise::runtime::testing
