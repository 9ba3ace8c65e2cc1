#include "runtime/step/first_calls.h"

#include <algorithm>
#include <functional>
#include <set>
#include <string>

#include "runtime/step/host_reads.h"

namespace reprise::runtime::internal::step {
namespace {

// Calls `visit` for each reference to memory in a call.
template <class Visit>
void for_each_ref(const Call& call, Visit&& visit) {
  for (const Argument& argument : call.arguments) {
    for (const TensorRef& ref : argument.tensors) visit(ref);
  }
  for (const auto& list : call.outputs) {
    for (const TensorRef& ref : list) visit(ref);
  }
}

int32_t externals_of(const Recording& recording) {
  int32_t count = 0;
  const auto note = [&](const TensorRef& ref) {
    if (ref.memory == Memory::kExternal) count = std::max(count, ref.index + 1);
  };
  for (const Call& call : recording.calls) {
    for_each_ref(call, note);
    for (const int32_t e : call.effects) count = std::max(count, e + 1);
  }
  for (const LeftOut& left : recording.left_out) for_each_ref(left.call, note);
  return count;
}

uint64_t mixed(uint64_t print, uint64_t word) {
  print = (print ^ word) * 0xff51afd7ed558ccdULL;
  return print ^ (print >> 33);
}

uint64_t mixed(uint64_t print, const TensorRef& ref) {
  print = mixed(print, static_cast<uint64_t>(ref.memory) << 32 | static_cast<uint32_t>(ref.index));
  for (const int64_t size : ref.geometry.sizes) print = mixed(print, static_cast<uint64_t>(size));
  return mixed(print, static_cast<uint64_t>(ref.geometry.dtype));
}

}  // namespace

Recording first_calls(const Recording& whole, size_t calls, size_t left_out) {
  Recording first;
  first.device = whole.device;
  first.held = whole.held;
  first.input_offsets = whole.input_offsets;
  const auto end_of = [](const auto& list, size_t count) {
    return list.begin() + static_cast<std::ptrdiff_t>(count);
  };
  first.calls.assign(whole.calls.begin(), end_of(whole.calls, calls));
  first.left_out.assign(whole.left_out.begin(), end_of(whole.left_out, left_out));
  for (const StepValue& value : whole.values) {
    if (value.maker < 0 || static_cast<size_t>(value.maker) >= calls) break;
    first.values.push_back(value);
  }
  const auto externals = static_cast<size_t>(externals_of(first));
  first.externals.assign(whole.externals.begin(), end_of(whole.externals, externals));
  std::set<const void*> storages;
  std::set<int32_t> inputs;
  for (const External& external : first.externals) {
    if (external.input >= 0) inputs.insert(external.input);
    if (external.input < 0) storages.insert(external.tensor.storage().unsafeGetStorageImpl());
  }
  for (const LeafGradient& leaf : whole.gradients) {
    const bool read = leaf.input >= 0
                          ? inputs.contains(leaf.input)
                          : storages.contains(leaf.target.storage().unsafeGetStorageImpl());
    if (read) first.gradients.push_back({.target = leaf.target, .input = leaf.input});
  }
  for (const int32_t input : whole.read_without_gradient) {
    if (inputs.contains(input)) first.read_without_gradient.insert(input);
  }
  return first;
}

uint64_t print_of(const Recording& recording) {
  uint64_t print = 0;
  for (const Call& call : recording.calls) {
    print = mixed(print, std::hash<std::string>()(call.name()));
    for_each_ref(call, [&](const TensorRef& ref) { print = mixed(print, ref); });
  }
  for (const TensorRef& output : recording.outputs) print = mixed(print, output);
  return print;
}

}  // namespace reprise::runtime::internal::step
