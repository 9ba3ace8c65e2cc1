#include "runtime/graph/captured.h"

#include <algorithm>
#include <set>

#include "runtime/state/value_keeper.h"
#include "runtime/modules/module_paths.h"
#include "runtime/step/observe_step.h"
#include "runtime/step/tensors.h"
#include "reprise/model/errors.h"

namespace reprise::runtime::internal::graph {

using modules::find_modules;
using rewrite::Alternatives;
using rewrite::find_alternatives;
using state::ValueKeeper;
using step::Call;
using step::External;
using step::Recording;
using step::Works;
using step::observe_step;
using step::tensor_on;
using step::works_of;

namespace {

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

Recording observed(const StepFunction& step, const Tensors& sample, const CaptureOptions& options) {
  Recording recording = observe_step(step, sample, device_of(sample), parameters_of(options));
  find_modules(recording, options.modules);
  return recording;
}

WorkCosts measured(const Recording& recording, const Works& works, const Alternatives& alternatives,
                   Updater& updater, const Tensors& sample, const MeasureOptions& options) {
  WorkCosts all = measure_works(recording, works, alternatives, updater.updates(), sample, options);
  updater.measure(recording, options, all);
  return all;
}

Tensors written(const Recording& recording) {
  std::set<int32_t> all;
  for (const Call& call : recording.calls) all.insert(call.effects.begin(), call.effects.end());
  Tensors tensors;
  for (const int32_t e : all) {
    tensors.push_back(recording.externals[static_cast<size_t>(e)].tensor);
  }
  return tensors;
}

// All of the storages, as bytes.
Tensors memory_of(const Tensors& tensors) {
  Tensors all;
  for (const at::Tensor& tensor : tensors) {
    const c10::Storage& storage = tensor.storage();
    all.push_back(tensor_on(
        storage,
        {.sizes = {static_cast<int64_t>(storage.nbytes())}, .strides = {1}, .dtype = at::kChar}));
  }
  return all;
}

}  // namespace

c10::Device device_of(const Tensors& inputs) {
  for (const at::Tensor& input : inputs) {
    if (input.defined()) return input.device();
  }
  throw InputError(
      "a captured step needs at least one input tensor, which says on what device it runs");
}

Effects::Effects(const Recording& recording)
    : tensors_(written(recording)), memory_(memory_of(tensors_)), kept_(memory_) {}

void Effects::save() {
  const bool all_there =
      std::equal(tensors_.begin(), tensors_.end(), memory_.begin(),
                 [](const at::Tensor& tensor, const at::Tensor& memory) {
                   return tensor.storage().is_alias_of(memory.storage());
                 });
  if (!all_there) {
    Tensors memory = memory_of(tensors_);
    kept_ = ValueKeeper(memory);
    memory_ = std::move(memory);
  }
  kept_.save();
}

Captured::Captured(const StepFunction& step, const Tensors& sample, const CaptureOptions& options)
    : circumstances(sample, options),
      recording(observed(step, sample, options)),
      works(works_of(recording)),
      updater(options, recording, works),
      alternatives(find_alternatives(recording, works, updater.updates(), options.alternatives)),
      costs(measured(recording, works, alternatives, updater, sample, options.measure)),
      lowered(lower(recording, works, alternatives, updater.updates(), costs.by_work, sample,
                     Bytes(0), options.measure.name)),
      replay(recording, works, lowered),
      effects(recording),
      residents(recording) {
  for (const External& external : recording.externals) {
    if (external.tensor.defined()) maybe_uncounted.push_back(external.tensor);
  }
}

}  // namespace reprise::runtime::internal::graph
