#include "runtime/graph/step_program.h"

#include <utility>

#include "runtime/graph/meter.h"
#include "runtime/graph/update_costs.h"
#include "runtime/modules/module_paths.h"
#include "runtime/step/find_updates.h"
#include "runtime/step/observe_step.h"
#include "reprise/model/errors.h"

namespace reprise::runtime::internal::graph {

using modules::with_modules;
using rewrite::RewrittenStep;
using rewrite::find_alternatives;
using step::Recording;
using step::Updates;
using step::Works;
using step::find_updates;
using step::observe_step;
using step::works_of;

std::vector<at::Tensor> parameters_of(const CaptureOptions& options) {
  std::vector<at::Tensor> all;
  for (const auto& module : options.modules) {
    for (at::Tensor& parameter : module->parameters()) all.push_back(std::move(parameter));
  }
  if (options.optimizer) {
    for (at::Tensor& parameter : options.optimizer->parameters()) {
      all.push_back(std::move(parameter));
    }
  }
  return all;
}

c10::Device device_of(const Tensors& inputs) {
  for (const at::Tensor& input : inputs) {
    if (input.defined()) return input.device();
  }
  throw InputError(
      "a captured step needs at least one input tensor, which says on what device it runs");
}

StepProgram make_step_program(const StepFunction& step, const Tensors& sample,
                              const CaptureOptions& options) {
  // Observe what the step does, call by call, and find the module that each call belongs to.
  Recording observed = observe_step(step, sample, device_of(sample), parameters_of(options));
  Recording recording = with_modules(std::move(observed), options.modules);

  // Make a work for each call, and for each update of the optimizer.
  Works calls = works_of(recording);
  Updates updates = find_updates(recording, options, /*first_work=*/calls.all.size());
  auto updater = std::make_shared<Updater>(options.optimizer, updates, recording.device);
  Works works = with_updates(std::move(calls), recording, updater);

  // Rewrite the step: find what may run in place of its calls.
  RewrittenStep rewritten = find_alternatives(std::move(recording), std::move(works),
                                              std::move(updates), options.alternatives);

  // Measure what each work costs.
  WorkCosts measured = measure_works(rewritten, sample, options.measure);
  UpdateCosts of_updates = measure_updates(rewritten.recording, rewritten.updates,
                                           options.optimizer.get(), options.measure);
  WorkCosts costs = with_updates(std::move(measured), of_updates, rewritten.updates);

  // Lower the step to a graph that a planner understands.
  LoweredStep lowered = lower(rewritten, costs.by_work, sample, options.measure.name);

  return {.step = std::move(rewritten),
          .costs = std::move(costs),
          .state_bytes = std::move(of_updates.state_bytes),
          .lowered = std::move(lowered),
          .updater = std::move(updater)};
}

}  // namespace reprise::runtime::internal::graph
