// Plans and captures the same stages, for tests that run both modes.
#pragma once

#include <memory>
#include <vector>

#include "fixture.h"
#include "reprise/runtime/capture.h"

namespace reprise::runtime::testing {

// Makes linear layers with batch norm, dropout and an in-place function between them.
inline std::vector<Stage> small_stages(int64_t width = 16) {
  return {layer("in", nn::Linear(width, width)),          layer("norm", nn::BatchNorm1d(width)),
          layer("relu", nn::ReLU(nn::ReLUOptions(true))), layer("drop", nn::Dropout(0.2)),
          layer("middle", nn::Linear(width, 2 * width)),  layer("tanh", nn::Tanh()),
          layer("out", nn::Linear(2 * width, 10))};
}

inline std::shared_ptr<Remat> fitted(const std::vector<Stage>& stages, const Tensors& inputs) {
  auto model = remat(stages, inputs, {.loss = mean_square, .measure = quick()});
  model->set_budget(smallest_budget(*model));
  model->plan_for(inputs);
  return model;
}

inline at::Tensor plain(const std::vector<Stage>& stages, const Tensors& inputs) {
  at::Tensor loss = mean_square(run_plain(stages, inputs));
  loss.backward();
  return loss;
}

inline StepFunction step_of(const std::vector<Stage>& stages) {
  return [stages](const Tensors& in) { return Tensors{plain(stages, in)}; };
}

inline CapturedStep captured(const std::vector<Stage>& stages, const Tensors& inputs) {
  CapturedStep step(step_of(stages), inputs, {.measure = quick()});
  step.plan({.budget = "90%", .time_limit = Nanos(100'000'000)});
  return step;
}

}  // namespace reprise::runtime::testing
