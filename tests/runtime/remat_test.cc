// This is the promise of the runtime: for every model and every budget, the same bits and the
// predicted bytes.
#include "reprise/runtime/remat.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "plain_step.h"
#include "reprise/model/errors.h"
#include "reprise/runtime/allocator.h"
#include "small_models.h"
#include "training/zoo.h"

namespace reprise::runtime::testing {

using training::make_model;
using training::Model;

namespace {

Loss loss_of(const Model& model, const at::Tensor& target) {
  return [loss = model.loss, target](const Tensors& y) { return loss(y.at(0), target); };
}

MeasureOptions measure_once() {
  return {.min_repeats = 1, .max_repeats = 1, .min_time = Nanos(0), .output_held = false};
}

// Runs one planned step from the present state.
StepResult run_planned_step(Remat& remat, const std::vector<Stage>& stages, const Tensors& inputs,
                            const Loss& loss) {
  at::Tensor value = loss(remat.forward(inputs));
  value.backward();
  return snapshot(stages, inputs, value);
}

class EveryModel : public ::testing::TestWithParam<std::string> {};

TEST_P(EveryModel, SameBitsAndPredictedBytesAtFiveBudgets) {
  install_cpu_allocator();
  at::manual_seed(7);
  const Model model = make_model(small_config(GetParam()));
  const Tensors inputs{model.sample_input()};
  const at::Tensor target = model.sample_target();
  const Loss loss = loss_of(model, target);
  const StepState state(model.stages, inputs);
  plain_step(model.stages, inputs, loss);  // warm up
  state.restore();
  int64_t plain_peak = 0;
  const int64_t plain_level = memory_count(c10::kCPU).live;
  const StepResult plain = plain_step(model.stages, inputs, loss, &plain_peak);
  state.restore();

  auto remat = reprise::runtime::remat(model.stages, inputs, {.loss = loss, .measure = measure_once()});
  const Frontier curve = frontier(remat->chain(), {.schedule_class = kScheduleClass});
  ASSERT_FALSE(curve.points.empty());
  const int64_t smallest = curve.points.front().budget.count();
  const int64_t largest = curve.points.back().budget.count();
  // Plain training was measured before the copies that this test compares with were made.
  const int64_t level = (remat->chain().fixed + remat->chain().input.bytes).count();
  fmt::print("{}: plain peak {}, keep-all plan {}, smallest {} above level ({} points)\n",
             GetParam(), plain_peak - plain_level, largest - level, smallest - level,
             curve.points.size());
  for (int k = 0; k <= 4; ++k) {
    const int64_t budget = smallest + (largest - smallest) * k / 4;
    SCOPED_TRACE(fmt::format("budget {} of plain peak {}", budget, plain_peak));
    remat->set_budget(Bytes(budget));
    state.restore();
    const StepResult planned = run_planned_step(*remat, model.stages, inputs, loss);
    EXPECT_EQ(difference(plain, planned), "");
    const StepReport report = remat->last_step();
    EXPECT_EQ(report.predicted_peak.count(), report.measured_peak.count());
    EXPECT_LE(report.measured_peak.count(), budget);
  }
}

TEST_P(EveryModel, OneByteLessThanThePeakIsRefusedAndNothingIsLost) {
  install_cpu_allocator();
  at::manual_seed(7);
  const Model model = make_model(small_config(GetParam()));
  const Tensors inputs{model.sample_input()};
  const Loss loss = loss_of(model, model.sample_target());
  // The plan's budget is right; the limit is set behind its back, when the first stage runs.
  int64_t limit = 0;
  std::vector<Stage> stages = model.stages;
  stages[0].forward = [&limit, inner = model.stages[0].forward](const Tensors& x) {
    if (limit) set_memory_limit(limit);
    return inner(x);
  };
  const StepState state(stages, inputs);
  const StepResult plain = plain_step(stages, inputs, loss);
  state.restore();
  const StepResult before = snapshot(stages, inputs, {});

  auto remat = reprise::runtime::remat(stages, inputs, {.loss = loss, .measure = measure_once()});
  const Frontier curve = frontier(remat->chain(), {.schedule_class = kScheduleClass});
  for (size_t k : {size_t{0}, curve.points.size() / 2, curve.points.size() - 1}) {
    remat->set_budget(curve.points[k].budget);
    state.restore();
    EXPECT_EQ(difference(plain, run_planned_step(*remat, stages, inputs, loss)), "");
    const int64_t peak = remat->last_step().measured_peak.count();
    EXPECT_EQ(peak, curve.points[k].budget.count());

    state.restore();
    const int64_t live = memory_count(c10::kCPU).live;
    limit = peak - 1;
    EXPECT_THROW(run_planned_step(*remat, stages, inputs, loss), BudgetError);
    limit = 0;
    EXPECT_EQ(memory_limit(), std::nullopt);
    EXPECT_EQ(memory_count(c10::kCPU).live, live) << "something of the failed step is still held";
    EXPECT_EQ(difference(before, snapshot(stages, inputs, {})), "");
    state.restore();
    EXPECT_EQ(difference(plain, run_planned_step(*remat, stages, inputs, loss)), "");
  }
}

// In `auto y = model->forward(x); loss = f(y); loss.backward();` y lives on. A plan expects this by
// default.
TEST_P(EveryModel, AnOutputThatTheCallerStillHoldsIsPlannedFor) {
  install_cpu_allocator();
  at::manual_seed(7);
  const Model model = make_model(small_config(GetParam()));
  const Tensors inputs{model.sample_input()};
  const Loss loss = loss_of(model, model.sample_target());
  MeasureOptions measure = measure_once();
  measure.output_held = MeasureOptions().output_held;
  auto remat = reprise::runtime::remat(model.stages, inputs, {.loss = loss, .measure = measure});
  const Frontier curve = frontier(remat->chain(), {.schedule_class = kScheduleClass});
  for (const FrontierPoint& point : {curve.points.front(), curve.points.back()}) {
    remat->set_budget(point.budget);
    const Tensors y = remat->forward(inputs);
    loss(y).backward();
    EXPECT_EQ(remat->last_step().predicted_peak, remat->last_step().measured_peak);
    EXPECT_LE(remat->last_step().measured_peak, point.budget);
    for (const at::Tensor& p : remat->parameters()) p.mutable_grad() = at::Tensor();
  }
}

INSTANTIATE_TEST_SUITE_P(Zoo, EveryModel, ::testing::ValuesIn(tested_models()),
                         [](const auto& param) { return param.param; });

}  // namespace
}  // namespace reprise::runtime::testing
