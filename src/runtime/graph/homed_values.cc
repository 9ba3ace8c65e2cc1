#include "runtime/graph/homed_values.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "runtime/device/tensor_bytes.h"
#include "runtime/graph/home_store.h"
#include "runtime/graph/step_program.h"
#include "runtime/step/parameter_names.h"

namespace reprise::runtime::internal::graph {

using step::Call;
using step::External;
using step::LeafGradient;
using step::Memory;
using step::Recording;
using step::TensorRef;
using step::Update;
using step::Updates;

namespace {

// Returns the externals that calls write, or that the step hands out.
std::set<int32_t> not_only_read(const Recording& recording) {
  std::set<int32_t> all;
  for (const Call& call : recording.calls) all.insert(call.effects.begin(), call.effects.end());
  const auto add = [&](const TensorRef& ref) {
    if (ref.memory == Memory::kExternal) all.insert(ref.index);
  };
  for (const TensorRef& ref : recording.outputs) add(ref);
  for (const LeafGradient& leaf : recording.gradients) add(leaf.gradient);
  return all;
}

}  // namespace

HomedValues homed_states(const Updates& updates, const std::vector<int64_t>& bytes) {
  HomedValues homed;
  for (size_t k = 0; k < updates.each.size(); ++k) {
    if (bytes[k] == 0) continue;
    const Update& update = updates.each[k];
    homed.push_back({.name = "state." + update.name,
                     .bytes = bytes[k],
                     .update = k,
                     .number = update.parameter});
  }
  return homed;
}

HomedValues homed_parameters(const Recording& recording, const Updates& updates,
                             const CaptureOptions& options) {
  const std::vector<at::Tensor> parameters = parameters_of(options);
  const std::vector<std::string> names = step::parameter_names(parameters, options);
  // Several parameters may lie in one storage, which moves as a whole.
  std::map<const void*, std::vector<size_t>> in_storage;
  for (size_t p = 0; p < parameters.size(); ++p) {
    if (!parameters[p].defined() || !parameters[p].has_storage()) continue;
    in_storage[parameters[p].storage().unsafeGetStorageImpl()].push_back(p);
  }
  const std::set<int32_t> excluded = not_only_read(recording);
  HomedValues homed;
  for (size_t e = 0; e < recording.externals.size(); ++e) {
    const External& external = recording.externals[e];
    const auto position = static_cast<int32_t>(e);
    if (!external.tensor.defined() || external.is_constant || excluded.contains(position)) continue;
    if (!external.tensor.has_storage() || external.tensor.device() != recording.device) continue;
    const c10::Storage& storage = external.tensor.storage();
    const auto found = in_storage.find(storage.unsafeGetStorageImpl());
    if (found == in_storage.end() || storage.nbytes() < kLeastMovableBytes) continue;
    HomedValue one{
        .name = "parameter." + names[found->second.front()],
        .bytes = device::counted_bytes(static_cast<int64_t>(storage.nbytes()), recording.device),
        .external = position,
        .tensor = external.tensor};
    for (size_t k = 0; k < updates.each.size(); ++k) {
      if (updates.each[k].external != position) continue;
      one.update = k;
      one.number = updates.each[k].parameter;
    }
    const bool is_trained = std::any_of(found->second.begin(), found->second.end(),
                                        [&](size_t p) { return parameters[p].requires_grad(); });
    if (is_trained && !one.update) continue;
    homed.push_back(std::move(one));
  }
  return homed;
}

}  // namespace reprise::runtime::internal::graph
