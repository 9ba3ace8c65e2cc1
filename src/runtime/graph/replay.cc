#include "runtime/graph/replay.h"

#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "reprise/model/errors.h"
#include "runtime/step/tensors.h"

namespace reprise::runtime::internal::graph {

using device::ReservedSpace;
using state::RandomState;
using step::Argument;
using step::ArgumentKind;
using step::extent_bytes;
using step::External;
using step::for_each_tensor;
using step::Geometry;
using step::is_host_number;
using step::Memory;
using step::offset_bytes;
using step::Recording;
using step::tensor_on;
using step::TensorRef;
using step::Work;
using step::Works;
using transfer::Carrier;
using transfer::Carriers;
using transfer::MovedBytes;
using transfer::Resident;
using transfer::take_memory;

namespace {

// Returns the geometry of a tensor whose memory nobody reads. The tensor begins where the reserved
// space begins.
Geometry at_start(Geometry geometry) {
  geometry.offset = 0;
  return geometry;
}

c10::Storage storage_with(c10::DataPtr block, int64_t bytes) {
  c10::Allocator* const allocator = c10::GetAllocator(block.device().type());
  return c10::Storage(c10::Storage::use_byte_size_t(), static_cast<size_t>(bytes),
                      std::move(block), allocator, /*resizable=*/true);
}

at::Tensor bytes_of(const c10::Storage& storage) {
  const auto bytes = static_cast<int64_t>(storage.nbytes());
  return tensor_on(storage, {.sizes = {bytes}, .strides = {1}, .dtype = at::kChar});
}

int64_t largest_reserved(const Works& works) {
  int64_t bytes = 0;
  for (const Work& work : works.all) {
    for (const Argument& argument : work.arguments) {
      if (!argument.shape_only) continue;
      for (const TensorRef& ref : argument.tensors) {
        bytes = std::max(bytes, extent_bytes(at_start(ref.geometry)));
      }
    }
  }
  return bytes;
}

}  // namespace

Replay::Replay(const Recording& recording, const Works& works, const LoweredStep& lowered)
    : recording_(recording),
      works_(works),
      lowered_(lowered),
      residents_(std::max<size_t>(1, lowered.devices.size()),
                 {std::vector<c10::Storage>(recording.values.size()),
                  std::vector<c10::Storage>(recording.externals.size())}),
      random_(lowered.graph.ops.size()),
      reserved_(std::make_shared<ReservedSpace>(largest_reserved(works))) {
  if (lowered.devices.empty()) return;
  graph_value_of_.assign(recording.values.size(), -1);
  for (size_t v = 0; v < lowered.step_value_of.size(); ++v) {
    const int32_t position = lowered.step_value_of[v];
    if (position >= 0) graph_value_of_[position] = static_cast<ValueIndex>(v);
  }
}

void Replay::begin(const Tensors& inputs, Carriers carriers, HomeStore* homes,
                   const PlacedStep* placed) {
  inputs_.clear();
  moved_ = {};
  homes_ = homes;
  placed_ = placed;
  carriers_ = std::move(carriers);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const at::Tensor& input = inputs[i];
    const int64_t moved = offset_bytes(input) - recording_.input_offsets[i];
    inputs_.push_back({input.defined() ? input.storage() : c10::Storage(), moved});
  }
}

void Replay::settle() {
  for (const auto& carrier : carriers_) {
    if (carrier) carrier->end();
  }
}

void Replay::drop_others() {
  for (size_t memory = 1; memory < residents_.size(); ++memory) {
    auto& [values, externals] = residents_[memory];
    std::fill(values.begin(), values.end(), c10::Storage());
    std::fill(externals.begin(), externals.end(), c10::Storage());
  }
}

void Replay::clear() {
  written_.clear();
  settle();  // before the memory that copies read and write goes
  for (const auto& carrier : carriers_) {
    if (!carrier) continue;
    const MovedBytes moved = carrier->take_moved();
    moved_ = {moved_.out + moved.out, moved_.in + moved.in, moved_.waited + moved.waited};
  }
  carriers_.clear();
  homes_ = nullptr;
  drop_others();
  stack_.clear();
  inputs_.clear();
  std::vector<c10::Storage>& values = residents_[0].values;
  std::fill(values.begin(), values.end(), c10::Storage());
  std::fill(random_.begin(), random_.end(), std::nullopt);
}

Replay::Input Replay::input_now(size_t position) const {
  const External& external = recording_.externals[position];
  if (!changes_.externals.empty()) {
    const auto other = changes_.externals.find(position);
    if (other != changes_.externals.end()) {
      return {other->second.first, other->second.second};
    }
  }
  if (external.input >= 0) return inputs_[external.input];
  return {external.tensor.storage(), offset_bytes(external.tensor) - external.offset};
}

at::Tensor Replay::external(const TensorRef& ref) const {
  const Input now = input_now(static_cast<size_t>(ref.index));
  if (now.moved == 0) return tensor_on(now.storage, ref.geometry);
  Geometry geometry = ref.geometry;
  geometry.offset += now.moved / static_cast<int64_t>(c10::elementSize(geometry.dtype));
  return tensor_on(now.storage, geometry);
}

at::Tensor Replay::tensor(const TensorRef& ref) const { return operand(ref, false, 0); }

at::Tensor Replay::operand(const TensorRef& ref, bool shape_only, int32_t memory) const {
  if (ref.memory == Memory::kNone) return {};
  const auto position = static_cast<size_t>(ref.index);
  const Residents& there = residents_[memory];
  if (ref.memory == Memory::kExternal) {
    if (memory == 0 || is_host_number(recording_.externals[position])) return external(ref);
    return tensor_on(there.externals[position], ref.geometry);
  }
  const c10::Storage& slot = there.values[position];
  if (slot) return tensor_on(slot, ref.geometry);
  if (!shape_only || memory > 0) throw InternalError("a plan reads a value that is not there");
  return tensor_on(reserved_->storage(), at_start(ref.geometry));
}

void Replay::push(const Argument& argument, int32_t memory) {
  switch (argument.kind) {
    case ArgumentKind::kConstant:
      stack_.push_back(argument.constant);
      break;
    case ArgumentKind::kTensor:
      stack_.emplace_back(operand(argument.tensors[0], argument.shape_only, memory));
      break;
    case ArgumentKind::kTensorList: {
      c10::List<at::Tensor> list;
      list.reserve(argument.tensors.size());
      for (const TensorRef& ref : argument.tensors)
        list.push_back(operand(ref, argument.shape_only, memory));
      stack_.emplace_back(std::move(list));
      break;
    }
    case ArgumentKind::kOptionalTensorList: {
      c10::List<std::optional<at::Tensor>> list;
      list.reserve(argument.tensors.size());
      for (const TensorRef& ref : argument.tensors) {
        if (ref.memory == Memory::kNone) {
          list.push_back(std::nullopt);
        } else {
          list.push_back(operand(ref, argument.shape_only, memory));
        }
      }
      stack_.emplace_back(std::move(list));
      break;
    }
  }
}

void Replay::change_numbers(const Work& work) {
  const auto position = static_cast<size_t>(&work - works_.all.data());
  const auto rerun = std::find(works_.rerun.begin(), works_.rerun.end(), position);
  const size_t call = rerun == works_.rerun.end()
                          ? position
                          : static_cast<size_t>(rerun - works_.rerun.begin());
  for (auto change = changes_.numbers.lower_bound({call, 0});
       change != changes_.numbers.end() && change->first.first == call; ++change) {
    stack_[change->first.second] = change->second;
  }
}

void Replay::invoke(const Work& work, int32_t memory) {
  stack_.clear();
  for (const Argument& argument : work.arguments) push(argument, memory);
  if (!changes_.numbers.empty()) change_numbers(work);
  at::GradMode::set_enabled(work.grad_mode);  // ReplayScope puts the mode back.
  work.kernel(stack_);
}

void Replay::keep_results(const Work& work, int32_t memory) {
  std::vector<c10::Storage>& slots = residents_[memory].values;
  for (const Work::Made& made : work.made) {
    c10::Storage& slot = slots[made.value];
    if (slot) continue;  // The value is live already, and the live one stays.
    size_t item = 0;
    for_each_tensor(stack_[made.result], [&](const at::Tensor& tensor) {
      if (item++ == made.item) slot = tensor.storage();
    });
    if (!slot || static_cast<int64_t>(slot.nbytes()) != recording_.values[made.value].bytes) {
      throw InternalError(
          fmt::format("{} returned another size than in the captured step", work.name));
    }
  }
  for (const auto& [now, before] : work.overwrites) {
    c10::Storage& slot = slots[now];
    c10::Storage& old = slots[before];
    if (!slot) slot = std::move(old);
    old = c10::Storage();
  }
  stack_.clear();
}

void Replay::run(const RunAction& step) {
  const auto op = static_cast<size_t>(step.op);
  const int32_t position = lowered_.works[op][step.variant];
  const Work& work = works_.all[position];
  const c10::OptionalDeviceGuard current_device(
      step.memory > 0 ? std::optional(lowered_.devices.at(step.memory)) : std::nullopt);
  before_overwrites(work, step.memory);
  written_.insert(work.effects.begin(), work.effects.end());
  std::optional<RandomState> current;
  if (step.save_random) random_[op].emplace(recording_.device);
  if (step.restore_random) {
    current.emplace(recording_.device);
    random_[op]->restore();
  }
  invoke(work, step.memory);
  if (current) current->restore();
  const auto call = static_cast<size_t>(position);  // Works that are no calls come behind them.
  if (call < unaudited_.size() && unaudited_[call]) audit_results(call);
  keep_results(work, step.memory);
}

void Replay::audit_results(size_t c) {
  const step::Call& call = recording_.calls[c];
  bool same = true;
  for (size_t r = 0; r < call.outputs.size(); ++r) {
    const std::vector<TensorRef>& expected = call.outputs[r];
    size_t item = 0;
    for_each_tensor(stack_.at(r), [&](const at::Tensor& tensor) {
      const size_t i = item++;
      if (!same || !tensor.defined()) return;
      same = i < expected.size() && tensor.scalar_type() == expected[i].geometry.dtype &&
             tensor.sizes() == expected[i].geometry.sizes &&
             tensor.strides() == expected[i].geometry.strides;
    });
    same = same && item == expected.size();
  }
  if (!same) {
    throw InputError(fmt::format(
        "operation {} ({}){} returned a tensor of another shape, or with other strides, than in the "
        "capture within a budget, where it got other numbers: capture the step without a budget",
        c, call.name(), call.place.empty() ? "" : " (" + call.place + ")"));
  }
  unaudited_[c] = false;
}

size_t Replay::step_value(ValueIndex value) const {
  const int32_t position = lowered_.step_value_of[value];
  if (position < 0) throw InternalError("a plan moves a value that the step does not make");
  return static_cast<size_t>(position);
}

bool Replay::stays(ValueIndex value) const {
  return residents_.size() == 1 &&
         recording_.values[step_value(value)].device != recording_.device;
}

c10::Storage& Replay::place_of(ValueIndex value, int32_t memory) {
  const auto found = lowered_.external_values.find(value);
  if (found == lowered_.external_values.end()) return residents_[memory].values[step_value(value)];
  if (memory == 0) throw InternalError("a plan takes memory of the caller");
  return residents_[memory].externals[found->second.external];
}

void Replay::copy(const CopyAction& copy) {
  Carrier* const carrier = carrier_of(std::max(copy.from, copy.to));
  return carrier != nullptr ? carrier->copy(copy) : Backend::copy(copy);
}

void Replay::wait(ValueIndex value, int32_t memory) {
  Carrier* const carrier = carrier_of(memory);
  return carrier != nullptr ? carrier->wait(value, memory) : Backend::wait(value, memory);
}

void Replay::free(ValueIndex value, int32_t memory) {
  Carrier* const carrier = carrier_of(memory);
  if (carrier != nullptr) carrier->free(value, memory);
  if (!has(memory)) return;
  if (memory > 0) {
    place_of(value, memory) = c10::Storage();
    return;
  }
  if (const auto homed = homed_of(value)) return homes_->leave(*homed);
  const int32_t step_value = lowered_.step_value_of[value];
  if (step_value < 0) return;  // The value is a parameter before its update, whose memory stays.
  if (carrier != nullptr && stays(value)) return;
  residents_[0].values[step_value] = c10::Storage();
}

void Replay::before_overwrites(const Work& work, int32_t memory) {
  Carrier* const carrier = carrier_of(memory);
  if (carrier == nullptr || graph_value_of_.empty()) return;
  for (const auto& [now, before] : work.overwrites) {
    carrier->free(graph_value_of_[before], memory);
  }
}

// The caller's tensor may begin somewhere else in its storage than at capture, and the storage may
// end earlier. The part that both have is what operations of the step can read.
std::vector<Resident> Replay::residents(ValueIndex value, int32_t memory) {
  if (const auto homed = homed_of(value)) return homes_->residents(*homed);
  const auto found = lowered_.external_values.find(value);
  if (memory > 0 || found == lowered_.external_values.end()) {
    if (memory == 0 && stays(value)) return {};
    return {place_of(value, memory)};
  }
  const int64_t bytes = found->second.bytes;
  const Input now = input_now(static_cast<size_t>(found->second.external));
  const int64_t begin = std::max<int64_t>(0, -now.moved);
  const int64_t end = std::min(bytes, static_cast<int64_t>(now.storage.nbytes()) - now.moved);
  return {{now.storage, bytes, begin, begin + now.moved, std::max<int64_t>(0, end - begin)}};
}

void Replay::arrive(ValueIndex value, int32_t memory, std::vector<c10::DataPtr> blocks) {
  if (const auto homed = homed_of(value)) return homes_->arrive(*homed, std::move(blocks));
  const auto found = lowered_.external_values.find(value);
  const int64_t bytes = found != lowered_.external_values.end()
                            ? found->second.bytes
                            : recording_.values[step_value(value)].bytes;
  place_of(value, memory) = storage_with(std::move(blocks.at(0)), bytes);
}

transfer::ParcelPtr Replay::bring(ValueIndex value) {
  const auto homed = homed_of(value);
  return homed ? homes_->bring(*homed) : nullptr;
}

void Replay::sent(ValueIndex value, const transfer::ParcelPtr& parcel) {
  if (const auto homed = homed_of(value)) homes_->sent(*homed, parcel);
}

bool Replay::bring_operands(const Work& work, int32_t memory) {
  auto& [values, externals] = residents_[memory];
  for (const Argument& argument : work.arguments) {
    for (const TensorRef& ref : argument.tensors) {
      const auto position = static_cast<size_t>(ref.index);
      if (ref.memory == Memory::kNone) continue;
      const bool is_external = ref.memory == Memory::kExternal;
      if (is_external && is_host_number(recording_.externals[position])) continue;
      const c10::Storage from =
          is_external ? input_now(position).storage : residents_[0].values[position];
      if (!from) return false;
      c10::Storage& place = is_external ? externals[position] : values[position];
      if (place) continue;
      const auto bytes = static_cast<int64_t>(from.nbytes());
      place = storage_with(take_memory(lowered_.devices.at(memory), bytes), bytes);
      bytes_of(place).copy_(bytes_of(from));
    }
  }
  return true;
}

}  // namespace reprise::runtime::internal::graph
