// The part of a replay that runs operations on other devices than the step's, and copies between
// them.
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <utility>

#include "reprise/model/errors.h"
#include "runtime/graph/replay.h"
#include "runtime/step/tensors.h"

namespace reprise::runtime::internal::graph {

using step::Argument;
using step::is_host_number;
using step::Memory;
using step::tensor_on;
using step::TensorRef;
using step::Work;
using transfer::DeviceCopies;

namespace {

at::Tensor bytes_of(const c10::Storage& storage, int64_t begin, int64_t count) {
  return tensor_on(storage,
                   {.sizes = {count}, .strides = {1}, .offset = begin, .dtype = at::kChar});
}

at::Tensor bytes_of(const c10::Storage& storage) {
  return bytes_of(storage, 0, static_cast<int64_t>(storage.nbytes()));
}

}  // namespace

void Replay::use_devices(const Machine& machine) {
  if (between_ && between_->machine() == machine) return;
  between_ = std::make_unique<DeviceCopies>(lowered_.devices, machine);
  graph_value_of_.assign(recording_.values.size(), -1);
  for (size_t v = 0; v < lowered_.step_value_of.size(); ++v) {
    const int32_t position = lowered_.step_value_of[v];
    if (position >= 0) graph_value_of_[position] = static_cast<ValueIndex>(v);
  }
}

void Replay::settle() {
  if (between_) between_->end();
}

void Replay::drop_others() {
  for (OtherDevice& there : others_) {
    std::fill(there.values.begin(), there.values.end(), c10::Storage());
    std::fill(there.externals.begin(), there.externals.end(), c10::Storage());
  }
}

std::vector<c10::Storage>& Replay::slots_in(int32_t memory) {
  return memory == 0 ? slots_ : others_.at(static_cast<size_t>(memory) - 1).values;
}

at::Tensor Replay::operand_in(const TensorRef& ref, int32_t memory) const {
  if (ref.memory == Memory::kNone) return {};
  const auto position = static_cast<size_t>(ref.index);
  const OtherDevice& there = others_.at(static_cast<size_t>(memory) - 1);
  const bool is_external = ref.memory == Memory::kExternal;
  if (is_external && is_host_number(recording_.externals[position])) return external(ref);
  const c10::Storage& storage = is_external ? there.externals[position] : there.values[position];
  if (!storage) throw InternalError("a plan reads a value that is not on the device");
  return tensor_on(storage, ref.geometry);
}

c10::Storage& Replay::place_of(ValueIndex value, int32_t memory) {
  const auto found = lowered_.external_values.find(value);
  if (found == lowered_.external_values.end()) return slots_in(memory)[step_value(value)];
  if (memory == 0) throw InternalError("a plan takes memory of the caller");
  return others_.at(static_cast<size_t>(memory) - 1).externals[found->second.external];
}

c10::Storage Replay::memory_on(int32_t memory, int64_t bytes) const {
  const c10::Device device = lowered_.devices.at(memory);
  const c10::DeviceGuard current(
      device);  // An allocator takes memory of the device that is current.
  c10::Allocator* const allocator = c10::GetAllocator(device.type());
  const auto size = static_cast<size_t>(bytes);
  return c10::Storage(c10::Storage::use_byte_size_t(), size, allocator->allocate(size), allocator,
                      /*resizable=*/true);
}

// The caller's tensor may begin somewhere else in its storage than at capture, and the storage may
// end earlier. The part that both have is what operations of the step can read.
std::pair<at::Tensor, at::Tensor> Replay::same_part(const LoweredStep::ExternalValue& value,
                                                    const c10::Storage& there) const {
  const Input now = input_now(static_cast<size_t>(value.external));
  const int64_t begin = std::max<int64_t>(0, -now.moved);
  const int64_t end = std::min(value.bytes, static_cast<int64_t>(now.storage.nbytes()) - now.moved);
  const int64_t count = std::max<int64_t>(0, end - begin);
  return {bytes_of(now.storage, begin + now.moved, count), bytes_of(there, begin, count)};
}

void Replay::copy_between(const CopyAction& copy) {
  const auto found = lowered_.external_values.find(copy.value);
  const bool of_caller = found != lowered_.external_values.end();
  const int64_t bytes =
      of_caller ? found->second.bytes : recording_.values[step_value(copy.value)].bytes;
  c10::Storage arrives = memory_on(copy.to, bytes);
  if (of_caller && copy.from == 0) {
    const auto [from, to] = same_part(found->second, arrives);
    between_->begin(copy, from, to);
  } else {
    between_->begin(copy, bytes_of(place_of(copy.value, copy.from)), bytes_of(arrives));
  }
  place_of(copy.value, copy.to) = std::move(arrives);
}

void Replay::before_overwrites(const Work& work, int32_t memory) {
  if (!between_) return;
  for (const auto& [now, before] : work.overwrites) {
    between_->settle(graph_value_of_[before], memory);
  }
}

bool Replay::bring_operands(const Work& work, int32_t memory) {
  OtherDevice& there = others_.at(static_cast<size_t>(memory) - 1);
  for (const Argument& argument : work.arguments) {
    for (const TensorRef& ref : argument.tensors) {
      const auto position = static_cast<size_t>(ref.index);
      if (ref.memory == Memory::kNone) continue;
      const bool is_external = ref.memory == Memory::kExternal;
      if (is_external && is_host_number(recording_.externals[position])) continue;
      const c10::Storage from = is_external ? input_now(position).storage : slots_[position];
      if (!from) return false;
      c10::Storage& place = is_external ? there.externals[position] : there.values[position];
      if (place) continue;
      place = memory_on(memory, static_cast<int64_t>(from.nbytes()));
      bytes_of(place).copy_(bytes_of(from));
    }
  }
  return true;
}

}  // namespace reprise::runtime::internal::graph
