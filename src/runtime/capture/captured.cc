#include "capture/captured.h"

#include <set>

#include "capture/module_paths.h"
#include "capture/observe_step.h"
#include "capture/tensors.h"
#include "reprise/model/errors.h"

namespace reprise::runtime {
namespace {

Recording observed(const StepFunction& step, const Tensors& sample, const CaptureOptions& options) {
  Recording recording = observe_step(step, sample, device_of(sample));
  find_modules(recording, options.modules);
  return recording;
}

WorkCosts measured(const Recording& recording, const Works& works, const Alternatives& alternatives,
                   Updater& updater, const Tensors& sample, const MeasureOptions& options) {
  WorkCosts all = measure_works(recording, works, alternatives, updater.updates(), sample, options);
  updater.measure(recording, options, all);
  return all;
}

// The memory that the step writes outside itself, as bytes.
std::vector<at::Tensor> written(const Recording& recording) {
  std::set<int32_t> all;
  for (const Call& call : recording.calls) all.insert(call.effects.begin(), call.effects.end());
  std::vector<at::Tensor> tensors;
  for (const int32_t e : all) {
    const c10::Storage& storage = recording.externals[static_cast<size_t>(e)].tensor.storage();
    tensors.push_back(tensor_on(
        storage,
        {.sizes = {static_cast<int64_t>(storage.nbytes())}, .strides = {1}, .dtype = at::kChar}));
  }
  return tensors;
}

}  // namespace

c10::Device device_of(const Tensors& inputs) {
  for (const at::Tensor& input : inputs) {
    if (input.defined()) return input.device();
  }
  throw InputError(
      "a captured step needs at least one input tensor, which says on what device it runs");
}

Captured::Captured(const StepFunction& step, const Tensors& sample, const CaptureOptions& options)
    : circumstances(sample, options),
      recording(observed(step, sample, options)),
      works(works_of(recording)),
      updater(options, recording, works),
      alternatives(find_alternatives(recording, works, updater.updates(), options.alternatives)),
      costs(measured(recording, works, alternatives, updater, sample, options.measure)),
      captured(lower(recording, works, alternatives, updater.updates(), costs.costs, sample,
                     Bytes(0), options.measure.name)),
      replay(recording, works, captured),
      effects(written(recording)),
      residents(recording) {
  for (const External& external : recording.externals) {
    if (external.tensor.defined()) resident.push_back(external.tensor);
  }
}

}  // namespace reprise::runtime
