#include "runtime/graph/captured.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "reprise/model/errors.h"
#include "runtime/distributed/shared_plan.h"
#include "runtime/graph/agreement.h"
#include "runtime/graph/link.h"
#include "runtime/graph/words.h"

namespace reprise::runtime::internal::graph {

using state::ValueKeeper;

namespace {

std::map<int32_t, at::Tensor> written(const Recording& recording) {
  std::map<int32_t, at::Tensor> all;
  for (const Call& call : recording.calls) {
    for (const int32_t e : call.effects) {
      const External& external = recording.externals[e];
      if (external.input < 0) all.emplace(e, external.tensor);
    }
  }
  return all;
}

std::map<int32_t, int32_t> written_inputs(const Recording& recording) {
  std::map<int32_t, int32_t> all;
  for (const Call& call : recording.calls) {
    for (const int32_t e : call.effects) {
      if (recording.externals[e].input >= 0) all.emplace(e, recording.externals[e].input);
    }
  }
  return all;
}

// Returns what is written if parameters, or gradients from before the step, are among it, or nothing.
std::map<int32_t, at::Tensor> written_with_parameters(const Recording& recording) {
  std::map<int32_t, at::Tensor> all = written(recording);
  std::set<int32_t> gradients;
  for (const step::LeafGradient& leaf : recording.gradients) {
    if (leaf.gradient.memory == step::Memory::kExternal) gradients.insert(leaf.gradient.index);
  }
  const bool any = std::any_of(all.begin(), all.end(), [&](const auto& one) {
    return recording.externals[one.first].requires_grad || gradients.contains(one.first);
  });
  return any ? all : std::map<int32_t, at::Tensor>();
}

Tensors written_without_parameters(const Recording& recording) {
  Tensors tensors;
  if (!written_with_parameters(recording).empty()) return tensors;
  for (const auto& [e, tensor] : written(recording)) tensors.push_back(tensor);
  return tensors;
}

// Returns for each tensor the whole of its storage, as bytes.
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

Tensors externals_of(const Recording& recording) {
  Tensors all;
  for (const External& external : recording.externals) {
    if (external.tensor.defined()) all.push_back(external.tensor);
  }
  return all;
}

}  // namespace

Effects::Effects(const Recording& recording)
    : tensors_(written_without_parameters(recording)),
      memory_(memory_of(tensors_)),
      kept_(memory_),
      parameters_(written_with_parameters(recording)),
      inputs_(written_inputs(recording)) {}

void Effects::save(const Tensors& inputs) {
  images_.clear();
  for (const auto& [e, input] : inputs_) {
    images_.emplace(e, step::copy_to_host(inputs[input].storage()));
  }
  const bool all_there = std::equal(tensors_.begin(), tensors_.end(), memory_.begin(),
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

void Effects::save_before(const step::Work& work) {
  if (parameters_.empty()) return;
  for (const int32_t e : work.effects) {
    if (!images_.contains(e)) images_.emplace(e, step::copy_to_host(parameters_.at(e).storage()));
  }
}

bool Effects::has(const std::set<int32_t>& written) const {
  return parameters_.empty() || std::all_of(written.begin(), written.end(),
                                            [&](int32_t e) { return images_.contains(e); });
}

void Effects::restore(const Tensors& inputs) const {
  kept_.restore();
  for (const auto& [e, bytes] : images_) {
    const auto input = inputs_.find(e);
    const at::Tensor& tensor = input == inputs_.end() ? parameters_.at(e) : inputs[input->second];
    step::copy_from_host(bytes, tensor.storage());
  }
}

Captured::Captured(Circumstances now, StepProgram made)
    : circumstances(std::move(now)),
      program(std::move(made)),
      replay(program.step.recording, program.step.works, program.lowered),
      effects(program.step.recording),
      maybe_uncounted(externals_of(program.step.recording)),
      residents(program.step.recording) {
  for (const step::GradientFlag& flag : program.step.recording.flags) {
    if (flag.at_start) circumstances.allow_flag(static_cast<size_t>(flag.input));
  }
  if (program.on_stand_ins) replay.audit();
  program.updater->keep_room(program.state_bytes);
}

std::unique_ptr<Captured> capture_step(const StepFunction& step, const Tensors& sample,
                                       const CaptureOptions& options,
                                       const std::shared_ptr<distributed::Ranks>& ranks) {
  Circumstances circumstances(sample, options);
  StepProgram program = make_step_program(step, sample, options, ranks);
  const std::string changed = circumstances.difference_of_values(Circumstances(sample, options));
  if (!changed.empty()) {
    throw InputError(fmt::format(
        "the step cannot be captured: it changes what it depends on ({}), and a captured "
        "step does not run the function again. Change it outside the step",
        changed));
  }
  if (ranks) {
    agree_on_step(*ranks, program, options);
    agree_on_numbers(*ranks, program, options);
    if (!options.other_devices.empty()) {
      distributed::agree_on_machine(*ranks, program.devices, program.step.recording.device);
    }
    const step::Buckets& buckets = program.step.buckets;
    if (!buckets.all.empty()) {
      program.link = measure_link(*ranks, buckets, program.step.recording.device);
    }
  }
  return std::make_unique<Captured>(std::move(circumstances), std::move(program));
}

}  // namespace reprise::runtime::internal::graph
