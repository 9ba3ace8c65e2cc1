#include "runtime/arena/step_memory.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/Allocator.h>

#include <cstring>

#include "runtime/device/device_heap.h"

namespace reprise::runtime::internal::arena {
namespace {

// A plan's arena is recorded again at most so many times because a run was different. A run that is
// different every time is left to the heap.
constexpr int kRenewals = 3;

void move_to_heap(c10::StorageImpl& storage) {
  if (storage.device().is_cpu()) {
    c10::DataPtr moved = c10::GetAllocator(c10::kCPU)->allocate(storage.nbytes());
    std::memcpy(moved.get(), storage.data(), storage.nbytes());
    storage.set_data_ptr_noswap(std::move(moved));
    return;
  }
  // The operations put the copy into the order of this thread's stream.
  const at::NoGradGuard no_grad;
  const auto bytes = static_cast<int64_t>(storage.nbytes());
  const auto options = at::TensorOptions(storage.device()).dtype(at::kByte);
  const at::Tensor moved = at::empty({bytes}, options);
  at::Tensor old = at::empty({0}, options);
  old.set_(c10::Storage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(&storage)), 0, {bytes},
           {1});
  moved.copy_(old);
  storage.set_data_ptr_noswap(
      std::move(moved.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks()));
}

}  // namespace

void StepMemory::renew(bool wanted, c10::Device device, Bytes scratch) {
  device_ = device;
  scratch_ = device.is_cpu() ? Bytes(0) : scratch;
  arena_ = wanted ? std::make_shared<StepArena>(device, scratch_) : nullptr;
  needed_ = workers_ = Bytes(0);
  renewals_ = 0;
}

void StepMemory::rest() {
  evacuate();
  if (arena_ && !arena_->rest()) arena_.reset();
}

void StepMemory::evacuate() {
  for (const auto& weak : handed_out_) {
    const auto storage = weak.lock();
    if (storage && arena_ && arena_->contains(storage->data())) move_to_heap(*storage);
  }
  handed_out_.clear();
}

std::optional<StepMemory::HeldBlock> StepMemory::held_by(const c10::Storage& storage) const {
  if (!arena_ || !arena_->contains(storage.data())) return std::nullopt;
  return HeldBlock{arena_->block_at(storage.data()), storage.nbytes()};
}

c10::Storage StepMemory::revive(const HeldBlock& held) {
  void* const data = arena_->revive(held.block);
  return c10::Storage(
      c10::Storage::use_byte_size_t(), held.bytes,
      device::heap_of(device_)->own(arena_, data, arena_->bytes_of(held.block), device_));
}

void StepMemory::count_run() {
  device::count_block(device_, live_bytes().count());
  device::count_block(device_, -live_bytes().count());
}

void StepMemory::move_out(Tensors& tensors) const {
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || !arena_ || !arena_->contains(tensor.storage().data())) continue;
    move_to_heap(*tensor.storage().unsafeGetStorageImpl());
  }
}

void StepMemory::hand_out(const at::Tensor& tensor) {
  if (tensor.defined()) handed_out_.push_back(tensor.storage().getWeakStorageImpl());
}

StepMemory::RunScope::RunScope(StepMemory& memory) : memory_(memory) {
  resume();
  if (memory_.arena_) memory_.arena_->begin_run();
  take_cpu_workers_peak();
}

void StepMemory::RunScope::resume() {
  if (!source_) source_.emplace(memory_.arena_, memory_.device_);
}

void StepMemory::RunScope::finish() {
  if (memory_.arena_) memory_.arena_->end_run();
  memory_.workers_ = Bytes(take_cpu_workers_peak());
}

bool StepMemory::plan_places(Bytes room) {
  if (!arena_ || !arena_->recorded()) return true;
  if (arena_->ready()) {
    if (arena_->fallbacks() > 0 && ++renewals_ <= kRenewals)
      arena_ = std::make_shared<StepArena>(device_, scratch_);
    return true;
  }
  arena_->pack_blocks(room - workers_);
  needed_ = arena_->height() + workers_;
  if (!arena_->ready()) arena_.reset();  // The arena does not fit, or the system has no memory.
  return needed_ <= room;
}

}  // namespace reprise::runtime::internal::arena
