// This is the promise of graph mode for every model of the zoo. A captured step, replayed inside a
// budget, leaves loss, gradients, buffers and random state with the bits of plain training, in the
// predicted bytes.
#include "fixture.h"
#include "reprise/check/simulate.h"
#include "reprise/runtime/capture.h"
#include "small_models.h"
#include "training/zoo.h"

namespace reprise::runtime::testing {

using training::make_model;
using training::Model;

namespace {

// Returns a peak that some plan reaches.
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

class CaptureZoo : public ::testing::TestWithParam<std::string> {
 protected:
  at::Tensor step(const Tensors& in) {
    at::Tensor loss = model_.loss(run_plain(model_.stages, {in[0]}).at(0), in[1]);
    loss.backward();
    return loss;
  }
  CapturedStep captured(AlternativeOptions alternatives) {
    return capture([&](const Tensors& in) { return step(in); }, inputs_,
                   {.measure = quick(), .alternatives = std::move(alternatives)});
  }
  Bits bits(const at::Tensor& loss) { return bits_now(model_.stages, {inputs_[0]}, loss); }

  // Runs steps at budgets between plain training's peak (0) and the smallest one (5). Returns how
  // many of the plans run something again.
  int steps_at_budgets(CapturedStep& captured, const std::vector<int>& fifths) {
    const Baseline plain = baseline(captured.graph());
    const int64_t floor = smallest_peak(captured);
    int repeated = 0;
    for (const int k : fifths) {
      const Bytes budget(plain.peak.count() - (plain.peak.count() - floor) * k / 5);
      SCOPED_TRACE(fmt::format("budget {} of {}", budget.count(), plain.peak.count()));
      try {
        captured.plan({.budget = budget, .time_limit = Nanos(1'000'000'000)});
      } catch (const BudgetError&) {
        EXPECT_GT(k, 3);  // the search for tight ones may need longer
        continue;
      }
      repeated += recomputes(*captured.planned().plan);
      state_.restore();
      for (size_t n = 0; n < expected_.size(); ++n) {
        SCOPED_TRACE(fmt::format("step {}", n));
        drop_gradients(model_.stages, {inputs_[0]});
        EXPECT_EQ(difference(expected_[n], bits(captured.run(inputs_))), "");
        const CapturedStepReport report = captured.last_step();
        EXPECT_EQ(report.predicted_peak.count(), report.measured_peak.count());
        EXPECT_LE(report.measured_peak, report.budget);
        EXPECT_EQ(report.fallbacks, 0);
      }
      const CapturedStepReport last = captured.last_step();
      EXPECT_GE(last.arena_height, last.arena_live_bytes);
    }
    state_.restore();
    return repeated;
  }

  Model model_ = small_model();
  const Tensors inputs_{model_.sample_input(), model_.sample_target()};
  const StepState state_{model_.stages, {inputs_[0]}};
  std::vector<Bits> expected_;  // of plain training's steps

 private:
  static Model small_model() {
    install_cpu_allocator();  // before there is anything to count
    at::manual_seed(5);
    return make_model(small_config(GetParam()));
  }
};

TEST_P(CaptureZoo, StepsEqualPlainTrainingInThePredictedBytes) {
  const Bits before = bits_now(model_.stages, {inputs_[0]});
  CapturedStep with_all = captured({});
  EXPECT_EQ(difference(before, bits_now(model_.stages, {inputs_[0]})), "")
      << "changed by capturing";
  // Small models hold little but gradients. With late gradients, their smallest peaks need no
  // operation twice.
  CapturedStep without_late = captured({.without = {"late-gradient"}});

  step(inputs_);  // warm
  state_.restore();
  for (int k = 0; k < 2; ++k) {
    drop_gradients(model_.stages, {inputs_[0]});
    const at::Tensor loss = step(inputs_);
    expected_.push_back(bits(loss));
  }
  state_.restore();
  reset_peak(c10::kCPU);
  step(inputs_);
  const int64_t eager_peak = memory_count(c10::kCPU).peak;
  state_.restore();
  EXPECT_LE(baseline(with_all.graph()).peak.count(), eager_peak)
      << "values die at their last use, not with their names";

  const bool all = reprise::testing::full_tests();
  const std::vector<int> every{0, 1, 2, 3, 4, 5};
  steps_at_budgets(with_all, all ? every : std::vector{0, 3, 5});
  EXPECT_GE(steps_at_budgets(without_late, all ? every : std::vector{2, 4}), 1)
      << "nothing ran again: the test shows nothing";
}

// Steps may plan again, for places that the budget has no room for. The saved plan and the log that
// they leave belong together.
TEST_P(CaptureZoo, ThePlanInForceIsTheOneThatRanLast) {
  CapturedStep step = captured({});
  const Bytes plain = baseline(step.graph()).peak;
  for (const char* share : {"90%", "80%", "70%"}) {
    SCOPED_TRACE(share);
    try {
      step.plan({.budget = Budget(share).resolve(plain), .time_limit = Nanos(200'000'000)});
    } catch (const BudgetError&) {
      continue;
    }
    step.log_steps(5);
    for (int n = 0; n < 5; ++n) {
      drop_gradients(model_.stages, {inputs_[0]});
      step.run(inputs_);
      EXPECT_TRUE(step.run_log()) << "step " << n << " ended with a plan that did not run";
    }
  }
  state_.restore();
}

INSTANTIATE_TEST_SUITE_P(Models, CaptureZoo, ::testing::ValuesIn(tested_models()),
                         [](const auto& param) { return param.param; });

}  // namespace
}  // namespace reprise::runtime::testing
