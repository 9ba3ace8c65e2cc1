// The promise of graph mode for every model of the zoo: a captured step, replayed inside a budget, leaves
// loss, gradients, buffers and random state with the bits of plain training, in the predicted bytes.
#include "fixture.h"
#include "reprise/check/simulate.h"
#include "reprise/runtime/capture.h"
#include "reprise/runtime/zoo.h"
#include "small_models.h"

namespace reprise::runtime::testing {
namespace {

// A peak that some plan reaches.
int64_t smallest_peak(CapturedStep& captured) {
  const PlanResult result = plan(captured.graph(), {.budget = Bytes(captured.graph().fixed.count()),
                                                    .time_limit = Nanos(500'000'000)});
  return result.smallest_budget.value_or(baseline(captured.graph()).peak).count();
}

bool recomputes(const Plan& plan) {
  std::set<std::string> seen;
  return std::any_of(plan.actions.begin(), plan.actions.end(), [&](const Action& action) {
    return action.kind == ActionKind::kRun && !seen.insert(action.id).second;
  });
}

class CaptureZoo : public ::testing::TestWithParam<std::string> {};

TEST_P(CaptureZoo, StepsEqualPlainTrainingInThePredictedBytes) {
  install_cpu_allocator();
  at::manual_seed(5);
  const Model model = make_model(small_config(GetParam()));
  const Tensors inputs{model.sample_input(), model.sample_target()};
  auto step = [&](const Tensors& in) {
    at::Tensor loss = model.loss(run_plain(model.stages, {in[0]}).at(0), in[1]);
    loss.backward();
    return loss;
  };
  const StepState state(model.stages, {inputs[0]});
  const Bits before = bits_now(model.stages, {inputs[0]});
  CapturedStep captured = capture(step, inputs, {.measure = quick()});
  EXPECT_EQ(difference(before, bits_now(model.stages, {inputs[0]})), "") << "changed by capturing";

  step(inputs);  // warm
  constexpr int kSteps = 2;
  state.restore();
  std::vector<Bits> expected;
  for (int k = 0; k < kSteps; ++k) {
    drop_gradients(model.stages, {inputs[0]});
    const at::Tensor loss = step(inputs);
    expected.push_back(bits_now(model.stages, {inputs[0]}, loss));
  }
  state.restore();
  reset_peak(c10::kCPU);
  step(inputs);
  const int64_t eager_peak = memory_count(c10::kCPU).peak;
  state.restore();

  const Baseline plain = baseline(captured.graph());
  EXPECT_LE(plain.peak.count(), eager_peak) << "values die at their last use, not with their names";
  const int64_t floor = smallest_peak(captured);
  int repeated = 0;
  const bool all = std::getenv("REPRISE_TEST_FULL") != nullptr;
  for (const int k : all ? std::vector{0, 1, 2, 3, 4, 5} : std::vector{0, 2, 4}) {
    const Bytes budget(plain.peak.count() - (plain.peak.count() - floor) * k / 5);
    SCOPED_TRACE(fmt::format("budget {} of {}", budget.count(), plain.peak.count()));
    try {
      captured.plan({.budget = budget, .time_limit = Nanos(300'000'000)});
    } catch (const BudgetError&) {
      EXPECT_GT(k, 3);  // the search for tight ones may need longer
      continue;
    }
    repeated += recomputes(*captured.planned().plan);
    state.restore();
    for (int n = 0; n < kSteps; ++n) {
      SCOPED_TRACE(fmt::format("step {}", n));
      drop_gradients(model.stages, {inputs[0]});
      const at::Tensor loss = captured.run(inputs);
      EXPECT_EQ(
          difference(expected[static_cast<size_t>(n)], bits_now(model.stages, {inputs[0]}, loss)),
          "");
      const CapturedStepReport report = captured.last_step();
      EXPECT_EQ(report.predicted_peak.count(), report.measured_peak.count());
      EXPECT_LE(report.measured_peak, report.budget);
      EXPECT_EQ(report.fallbacks, 0);
    }
    const CapturedStepReport last = captured.last_step();
    EXPECT_GE(last.arena_height, last.arena_live_bytes);
  }
  EXPECT_GE(repeated, 1) << "nothing ran again: the test shows nothing";
  state.restore();
}

std::vector<std::string> names() {
  std::vector<std::string> list;
  for (const ModelInfo& info : models()) list.push_back(info.name);
  return list;
}

INSTANTIATE_TEST_SUITE_P(Models, CaptureZoo, ::testing::ValuesIn(names()),
                         [](const auto& param) { return param.param; });

}  // namespace
}  // namespace reprise::runtime::testing
