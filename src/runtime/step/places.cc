#include "runtime/step/places.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <new>
#include <set>
#include <utility>

#include "reprise/runtime/allocator.h"
#include "runtime/device/tensor_bytes.h"
#include "runtime/step/host_reads.h"
#include "runtime/step/tensors.h"

namespace reprise::runtime::internal::step {

using device::counted_bytes;
using device::kBlockAlignment;

External literal_of(const at::Tensor& tensor) {
  const HostBytes bytes = copy_to_host(tensor.storage());
  c10::DataPtr memory;
  if (tensor.device().is_cpu()) {
    const int64_t counted = counted_bytes(static_cast<int64_t>(bytes.size()));
    void* data = std::aligned_alloc(kBlockAlignment, static_cast<size_t>(counted));
    if (data == nullptr && !bytes.empty()) throw std::bad_alloc();
    memory = c10::DataPtr(data, data, &std::free, tensor.device());
  } else {
    memory = c10::GetAllocator(tensor.device().type())->allocate(bytes.size());
  }
  c10::Storage copy(c10::Storage::use_byte_size_t(), bytes.size(), std::move(memory));
  copy_from_host(bytes, copy);
  return {.tensor = tensor_on(copy, geometry_of(tensor)), .is_constant = true};
}

Places::Places(Recording& recording, const Tensors& inputs, BeforeImages& images,
               const Audit* known, const Surroundings* surroundings, Problems& problems)
    : recording_(recording),
      images_(images),
      known_(known),
      surroundings_(surroundings),
      problems_(problems),
      first_serial_(cpu_allocation_serial()) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    recording_.input_offsets.push_back(offset_bytes(inputs[i]));
    if (!inputs[i].defined()) continue;
    const auto entry =
        inputs_.emplace(inputs[i].storage().unsafeGetStorageImpl(), static_cast<int32_t>(i)).first;
    extents_.push_back(
        {entry->second, recording_.input_offsets.back(), extent_bytes(geometry_of(inputs[i]))});
    input_tensors_.emplace(inputs[i].unsafeGetTensorImpl(), static_cast<int32_t>(i));
  }
}

TensorRef Places::refer(const at::Tensor& tensor, bool is_result, const Call& call) {
  if (!tensor.defined()) return {};
  if (tensor.key_set().has(c10::DispatchKey::Python)) {
    problems_.refuse(call,
                     "uses a tensor of a class written in Python (a DTensor, or another wrapper of "
                     "tensors), whose memory the capture does not see; give it plain tensors");
    return {};
  }
  constexpr c10::DispatchKeySet kTransformed(
      {c10::DispatchKey::FuncTorchBatched, c10::DispatchKey::FuncTorchGradWrapper});
  if (tensor.key_set().has_any(kTransformed)) {
    problems_.refuse(call,
                     "uses a tensor inside a transform of torch.func (grad, vmap, jvp), whose "
                     "operations a recording does not see; online mode runs such a step");
    return {};
  }
  if (tensor._is_zerotensor()) {
    problems_.refuse(call, "uses a tensor of zeros without memory, as forward derivatives do");
    return {};
  }
  if (!tensor.has_storage() || tensor.layout() != at::kStrided) {
    problems_.refuse(call,
                     fmt::format("uses a tensor of layout {}", c10::toString(tensor.layout())));
    return {};
  }
  const c10::Storage& storage = tensor.storage();
  auto [entry, fresh] = tracked_.try_emplace(storage.unsafeGetStorageImpl());
  Tracked& tracked = entry->second;
  if (fresh) {
    tracked.alive = storage.getWeakStorageImpl();
    tracked.bytes = storage.nbytes();
    if (is_result) {
      tracked.place = {Memory::kValue, add_value(storage, -1), {}};
    } else {
      tracked.place = {Memory::kExternal, add_external(tensor, call), {}};
    }
  } else if (tracked.bytes != storage.nbytes()) {
    problems_.refuse(call, "uses memory that was resized inside the step");
  }
  TensorRef ref = tracked.place;
  ref.geometry = geometry_of(tensor);
  require_within_input(ref, call);
  return ref;
}

// Refuses a call that reads more of an input's storage than the input. Inputs may be other parts of
// a tensor at each step, and all that the step reads of that tensor would move with them.
void Places::require_within_input(const TensorRef& ref, const Call& call) {
  if (ref.memory != Memory::kExternal) return;
  const int32_t owner = recording_.externals[ref.index].input;
  if (owner < 0) return;
  const int64_t begin =
      ref.geometry.offset * static_cast<int64_t>(c10::elementSize(ref.geometry.dtype));
  const auto lies_in = [&](const InputExtent& input) {
    return input.owner == owner && begin >= input.begin && extent_bytes(ref.geometry) <= input.end;
  };
  if (std::any_of(extents_.begin(), extents_.end(), lies_in)) return;
  problems_.refuse(
      call, fmt::format("reads more of the tensor that input {} is a part of than that part; "
                        "give the step a copy of the input",
                        owner));
}

int32_t Places::add(External external) {
  recording_.externals.push_back(std::move(external));
  return static_cast<int32_t>(recording_.externals.size()) - 1;
}

int32_t Places::add_literal(const at::Tensor& tensor, const Call& call) {
  // A number of the program is one that a checkpoint reads when it runs a part again.
  if (saved_by_hooks_ && call.phase == Phase::kBackward &&
      !tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    problems_.refuse(
        call,
        "reads what a function of torch.autograd.graph.saved_tensors_hooks made, which no "
        "operation shows; leave it to the plan what is kept");
  }
  return add(literal_of(tensor));
}

int32_t Places::add_external(const at::Tensor& tensor, const Call& call) {
  const c10::Storage& storage = tensor.storage();
  const auto input = inputs_.find(storage.unsafeGetStorageImpl());
  if (input != inputs_.end()) return add({.input = input->second});
  const bool known_age =
      storage.device().is_cpu() && storage.nbytes() > 0 && !is_stand_in(storage);
  const uint64_t serial = known_age ? cpu_allocation_serial(storage.data()) : 0;
  if (serial <= first_serial_) {
    if (known_ != nullptr && serial > known_->begun && serial <= known_->ended) {
      problems_.refuse(
          call,
          "reads a tensor that the run of the step before this one made: the step keeps state "
          "outside its inputs and buffers (an attribute that it sets?). Make that a buffer "
          "which it writes in place, or an input and an output");
    }
    const bool has_history = tensor.requires_grad() && !tensor.is_leaf();
    return add({.tensor = has_history ? tensor_on(storage, geometry_of(tensor)) : tensor,
                .offset = offset_bytes(tensor)});
  }
  if (storage.nbytes() > kLargestLiteral) {
    problems_.refuse(
        call, fmt::format("reads {} bytes that were made inside the step by code that calls no "
                          "operation",
                          storage.nbytes()));
  }
  return add_literal(tensor, call);
}

bool Places::write(const c10::Storage& storage, Call& call) {
  Tracked& tracked = tracked_.at(storage.unsafeGetStorageImpl());
  if (tracked.place.memory != Memory::kValue) {
    write_external(call, tracked.place.index);
    return false;
  }
  tracked.place.index = add_value(storage, tracked.place.index);
  return true;
}

void Places::write_external(Call& call, int32_t index) {
  const External& external = recording_.externals[index];
  if (external.requires_grad && !is_followed()) {
    problems_.refuse(call, "writes a parameter; keep the optimizer out of the captured step");
  } else if (external.input >= 0 && !is_followed()) {
    problems_.refuse(call, fmt::format("writes input {} of the step in place; give the step a copy",
                                       external.input));
  } else if (external.is_constant) {
    problems_.refuse(call, "writes a literal in place");
  }
  call.effects.push_back(index);
}

int32_t Places::add_value(const c10::Storage& storage, int32_t previous) {
  recording_.values.push_back({.bytes = static_cast<int64_t>(storage.nbytes()),
                               .maker = static_cast<int32_t>(recording_.calls.size()),
                               .previous = previous,
                               .device = storage.device()});
  return static_cast<int32_t>(recording_.values.size()) - 1;
}

// Returns the external that lies in this storage, or null if the step made the storage.
External* Places::external_at(const c10::Storage& storage) {
  const TensorRef& place = tracked_.at(storage.unsafeGetStorageImpl()).place;
  if (place.memory != Memory::kExternal) return nullptr;
  return &recording_.externals[place.index];
}

int32_t Places::note_leaf(const at::Tensor& tensor) {
  External* external = external_at(tensor.storage());
  // A leaf that autograd saved may come back as another tensor of the same memory.
  if (external != nullptr && !std::exchange(external->requires_grad, true) && external->input < 0) {
    external->tensor = tensor;
    external->offset = offset_bytes(tensor);
  }
  const auto input = input_tensors_.find(tensor.unsafeGetTensorImpl());
  return input == input_tensors_.end() ? -1 : input->second;
}

void Places::note_read_without_gradient(const at::Tensor& tensor) {
  const auto input = input_tensors_.find(tensor.unsafeGetTensorImpl());
  if (input != input_tensors_.end()) recording_.read_without_gradient.insert(input->second);
}

bool Places::made_in_step(const c10::Storage& storage) const {
  const auto found = tracked_.find(storage.unsafeGetStorageImpl());
  if (found == tracked_.end()) return true;  // No operation has read it.
  const TensorRef& place = found->second.place;
  if (place.memory == Memory::kValue) return true;
  return place.memory == Memory::kExternal && recording_.externals[place.index].is_constant;
}

void Places::note(const c10::Storage& storage, const TensorRef& place) {
  Tracked& tracked = tracked_[storage.unsafeGetStorageImpl()];
  tracked.alive = storage.getWeakStorageImpl();
  tracked.bytes = storage.nbytes();
  tracked.place = place;
}

void Places::add_host_data(const at::Tensor& tensor) {
  if (!tensor.defined()) return;
  const int32_t external = add({.tensor = tensor, .offset = offset_bytes(tensor)});
  note(tensor.storage(), {Memory::kExternal, external, {}});
}

void Places::add_kept() {
  std::set<int32_t> known;
  const auto add = [&](const TensorRef& ref) {
    if (ref.memory == Memory::kValue) known.insert(ref.index);
  };
  for (const TensorRef& ref : recording_.outputs) add(ref);
  for (const LeafGradient& leaf : recording_.gradients) add(leaf.gradient);
  std::map<int32_t, int64_t> kept;  // bytes, by value
  for (const auto& [address, tracked] : tracked_) {
    if (tracked.place.memory != Memory::kValue || known.contains(tracked.place.index)) continue;
    const c10::Storage storage(tracked.alive->lock());
    if (!storage) continue;
    // Without the reference of this function. What only the surroundings hold goes with them.
    const auto references = static_cast<int64_t>(storage.use_count()) - 1;
    if (references > (surroundings_ ? surroundings_->own_references(storage) : 0)) {
      kept.emplace(tracked.place.index, static_cast<int64_t>(tracked.bytes));
    }
  }
  for (const auto& [value, bytes] : kept) {
    const Geometry whole{.sizes = {bytes}, .strides = {1}, .dtype = at::kByte};
    recording_.outputs.push_back({Memory::kValue, value, whole});
  }
  recording_.kept = kept.size();
}

void Places::note_bytes(const c10::Storage& storage) {
  const auto found = tracked_.find(storage.unsafeGetStorageImpl());
  if (found != tracked_.end()) comparable_print(found->second, storage);
}

bool Places::changed(const c10::Storage& storage, const Extent& extent) {
  Tracked& tracked = tracked_.at(storage.unsafeGetStorageImpl());
  if (!tracked.print) return false;
  Fingerprint* print = comparable_print(tracked, storage);
  return print != nullptr && print->renew(storage, extent);
}

Fingerprint* Places::comparable_print(Tracked& tracked, const c10::Storage& storage) {
  if (surroundings_ != nullptr && !surroundings_->is_present(storage)) return nullptr;
  const int64_t made = surroundings_ == nullptr ? 0 : surroundings_->made_again(storage);
  // Parts that no operation has written may differ in bytes that were made again. Memory that the
  // host has written is never made again.
  if (!tracked.print || tracked.made != made) {
    tracked.print.emplace(storage);
    tracked.made = made;
    return nullptr;
  }
  return &*tracked.print;
}

void Places::find_literal(const at::Tensor& operand, const Call& call) {
  const c10::Storage& storage = operand.storage();
  const auto found = tracked_.find(storage.unsafeGetStorageImpl());
  if (found == tracked_.end()) return;
  Tracked& tracked = found->second;
  if (!tracked.print) return;
  Fingerprint* print = comparable_print(tracked, storage);
  if (print == nullptr || !print->renew(storage, extent_of(geometry_of(operand)))) return;
  if (tracked.place.memory != Memory::kValue) return;  // The host may write what it owns.
  // Other bytes than after the last call came without an operator. They are a literal, or they come
  // from code that the capture cannot see.
  if (storage.nbytes() > kLargestLiteral) {
    problems_.refuse(call,
                     fmt::format("reads {} bytes that were written inside the step by code that "
                                 "calls no operation",
                                 storage.nbytes()));
    return;
  }
  tracked.place = {Memory::kExternal, add_literal(operand, call), {}};
}

}  // namespace reprise::runtime::internal::step
