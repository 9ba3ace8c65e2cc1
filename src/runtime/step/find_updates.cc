#include "runtime/step/find_updates.h"

#include <fmt/format.h>

#include <map>
#include <set>

#include "reprise/model/errors.h"
#include "runtime/device/tensor_bytes.h"
#include "runtime/step/parameter_names.h"

namespace reprise::runtime::internal::step {

using device::shape_text;

namespace {

// Returns the position of the parameter's memory in Recording::externals, or -1 if the step does
// not read it.
int32_t external_of(const Recording& recording, const at::Tensor& parameter) {
  for (size_t e = 0; e < recording.externals.size(); ++e) {
    const at::Tensor& tensor = recording.externals[e].tensor;
    if (tensor.defined() && tensor.is_alias_of(parameter)) return static_cast<int32_t>(e);
  }
  return -1;
}

// Returns the parameters as a set. Throws InputError if one is there twice.
std::set<const void*> each_once(const std::vector<at::Tensor>& parameters) {
  std::set<const void*> known;
  for (const at::Tensor& parameter : parameters) {
    if (known.insert(parameter.unsafeGetTensorImpl()).second) continue;
    throw InputError(fmt::format(
        "the optimizer has a parameter twice ({}): its step would update it twice with the same "
        "gradient. Give it each parameter once",
        shape_text(parameter)));
  }
  return known;
}

// Throws InputError unless the optimizer uses every gradient that the step makes for parameters,
// and each parameter has memory of its own.
void check_coverage(const Recording& recording, const std::vector<at::Tensor>& parameters) {
  const std::set<const void*> known = each_once(parameters);
  std::map<int32_t, const LeafGradient*> memory;
  for (const LeafGradient& leaf : recording.gradients) {
    const bool is_known = known.contains(leaf.target.unsafeGetTensorImpl());
    const std::string what = shape_text(leaf.target);
    if (leaf.input >= 0) {
      if (!is_known) continue;
      throw InputError(
          fmt::format("input {} of the step is a parameter of the optimizer: the step cannot "
                      "update it. Let the "
                      "step find it by itself",
                      leaf.input));
    }
    const int32_t external = external_of(recording, leaf.target);
    // The step makes this leaf itself, or the leaf gets no gradient.
    if (external < 0 || leaf.gradient.memory == Memory::kNone) continue;
    if (!is_known) {
      throw InputError(fmt::format(
          "the step makes a gradient for a parameter ({}) that is in no group of the optimizer: "
          "nobody would use it up. Add it to the optimizer, or switch requires_grad off",
          what));
    }
    if (leaf.gradient.memory == Memory::kExternal) {
      throw InputError(fmt::format(
          "the gradient of a parameter ({}) is memory from outside the step; give the optimizer a "
          "copy",
          what));
    }
    if (!memory.emplace(external, &leaf).second) {
      throw InputError(fmt::format(
          "two parameters ({}) lie in the same memory: one would be updated while the other is "
          "still needed. Use one tensor in both places",
          what));
    }
  }
}

}  // namespace

Updates find_updates(const Recording& recording, const CaptureOptions& options, size_t first_work) {
  Updates updates;
  if (!options.optimizer) return updates;
  const std::vector<at::Tensor> parameters = options.optimizer->parameters();
  check_coverage(recording, parameters);
  updates.optimizer = options.optimizer->name();
  const std::vector<std::string> names = parameter_names(parameters, options);
  std::map<const void*, size_t> leaves;
  for (size_t l = 0; l < recording.gradients.size(); ++l) {
    leaves.emplace(recording.gradients[l].target.unsafeGetTensorImpl(), l);
  }
  auto work = static_cast<int32_t>(first_work);
  updates.before = work++;
  for (size_t p = 0; p < parameters.size(); ++p) {
    const auto leaf = leaves.find(parameters[p].unsafeGetTensorImpl());
    // The optimizer leaves a parameter without a gradient alone.
    if (leaf == leaves.end() ||
        recording.gradients[leaf->second].gradient.memory == Memory::kNone) {
      continue;
    }
    updates.each.push_back({.parameter = p,
                            .leaf = leaf->second,
                            .external = external_of(recording, parameters[p]),
                            .work = work++,
                            .name = names[p]});
  }
  if (updates.each.empty()) {
    throw InputError("no parameter of the optimizer gets a gradient in this step");
  }
  updates.whole = work;
  return updates;
}

}  // namespace reprise::runtime::internal::step
