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
using step::Memory;
using step::offset_bytes;
using step::Recording;
using step::tensor_on;
using step::TensorRef;
using step::Work;
using step::Works;

namespace {

// Returns the geometry of a tensor whose memory nobody reads. The tensor begins where the reserved
// space begins.
Geometry at_start(Geometry geometry) {
  geometry.offset = 0;
  return geometry;
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
      slots_(recording.values.size()),
      random_(lowered.graph.ops.size()),
      reserved_(std::make_shared<ReservedSpace>(largest_reserved(works))) {
  for (size_t device = 1; device < lowered.devices.size(); ++device) {
    others_.push_back({std::vector<c10::Storage>(recording.values.size()),
                       std::vector<c10::Storage>(recording.externals.size())});
  }
}

void Replay::begin(const Tensors& inputs, transfer::OffloadMemories memories, HomeStore* homes,
                   const PlacedStep* placed) {
  inputs_.clear();
  moved_ = {};
  homes_ = homes;
  placed_ = placed;
  if (!memories.empty()) copies_.emplace(std::move(memories));
  for (size_t i = 0; i < inputs.size(); ++i) {
    const at::Tensor& input = inputs[i];
    const int64_t moved = offset_bytes(input) - recording_.input_offsets[i];
    inputs_.push_back({input.defined() ? input.storage() : c10::Storage(), moved});
  }
}

void Replay::use_sums(const Machine& machine, std::map<ValueIndex, Sum> sums,
                      std::shared_ptr<Averager> averager) {
  link_ = find_memory(machine, kRanks);
  sums_ = std::move(sums);
  averager_ = std::move(averager);
}

void Replay::clear() {
  written_.clear();
  if (between_) {
    between_->end();  // before the memory that copies read and write goes
    moved_ = between_->take_moved();
  }
  drop_others();
  if (copies_) {
    copies_->end();  // before the memory that copies read and write goes
    moved_ = copies_->moved();
    copies_.reset();
  }
  if (homes_ != nullptr) {
    moved_.out += homes_->moved().out;
    moved_.in += homes_->moved().in;
    moved_.waited += homes_->moved().waited;
    homes_ = nullptr;
  }
  unmoved_.clear();
  stack_.clear();
  inputs_.clear();
  std::fill(slots_.begin(), slots_.end(), c10::Storage());
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
  if (memory > 0) return operand_in(ref, memory);
  switch (ref.memory) {
    case Memory::kNone:
      return {};
    case Memory::kExternal:
      return external(ref);
    case Memory::kValue:
      break;
  }
  const c10::Storage& slot = slots_[ref.index];
  if (slot) return tensor_on(slot, ref.geometry);
  if (!shape_only) throw InternalError("a plan reads a value that is not there");
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
  const auto call = static_cast<size_t>(&work - works_.all.data());
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
  std::vector<c10::Storage>& slots = slots_in(memory);
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
  keep_results(work, step.memory);
}

void Replay::free(ValueIndex value, int32_t memory) {
  if (memory >= link_) return;
  if (between_) between_->settle(value, memory);
  if (memory > 0 && between_) {
    place_of(value, memory) = c10::Storage();
    return;
  }
  if (memory > 0) {
    if (!copies_) return Backend::wait(value, memory);  // It has no other memory.
    if (unmoved_.erase(value) == 0) copies_->free(value, memory);
    return;
  }
  if (const auto homed = homed_of(value)) return homes_->leave(*homed);
  const int32_t step_value = lowered_.step_value_of[value];
  if (step_value < 0) return;  // The value is a parameter before its update, whose memory stays.
  slots_[step_value] = c10::Storage();
}

size_t Replay::step_value(ValueIndex value) const {
  const int32_t position = lowered_.step_value_of[value];
  if (position < 0) throw InternalError("a plan moves a value that the step does not make");
  return static_cast<size_t>(position);
}

bool Replay::on_other_device(ValueIndex value) const {
  return recording_.values[step_value(value)].device != recording_.device;
}

// A value that comes back has its storage from the beginning of the copy on, as the simulator counts
// it. Nothing reads the storage before the wait.
void Replay::copy(const CopyAction& copy) {
  if (copy.to >= link_) return;  // The op before the copy has started the sum.
  if (between_) return copy_between(copy);
  if (!copies_) return Backend::copy(copy);
  if (const auto homed = homed_of(copy.value)) {
    return copy.from == 0 ? homes_->send(*homed) : homes_->bring(*homed);
  }
  c10::Storage& slot = slots_[step_value(copy.value)];
  if (on_other_device(copy.value)) {
    if (copy.from == 0) {
      unmoved_[copy.value] = slot;
    } else {
      slot = unmoved_.at(copy.value);
    }
    return;
  }
  if (copy.from == 0) return copies_->out(copy, {slot});
  const int64_t bytes = recording_.values[step_value(copy.value)].bytes;
  c10::Storage storage(c10::Storage::use_byte_size_t(), static_cast<size_t>(bytes),
                       c10::DataPtr(nullptr, recording_.device),
                       c10::GetAllocator(recording_.device.type()), /*resizable=*/true);
  storage.set_data_ptr_noswap(std::move(copies_->in(copy).at(0)));
  slot = std::move(storage);
}

void Replay::wait(ValueIndex value, int32_t memory) {
  if (memory >= link_) {
    const Sum& sum = sums_.at(value);
    return sum.exchanges ? averager_->wait_gather(sum.bucket) : averager_->wait(sum.bucket);
  }
  if (between_) return between_->wait(value, memory);
  if (!copies_) return Backend::wait(value, memory);
  if (const auto homed = homed_of(value)) {
    return memory == 0 ? homes_->arrive(*homed) : homes_->sent(*homed);
  }
  if (!on_other_device(value)) copies_->wait(value, memory);
}

}  // namespace reprise::runtime::internal::graph
