#include "runtime/arena/step_memory.h"

#include <c10/core/Allocator.h>

#include <cstring>

namespace reprise::runtime::internal::arena {
namespace {

// A plan's arena is recorded again at most so many times because a run was different. A run that is
// different every time is left to the heap.
constexpr int kRenewals = 3;

void move_to_heap(c10::StorageImpl& storage) {
  c10::DataPtr moved = c10::GetAllocator(c10::kCPU)->allocate(storage.nbytes());
  std::memcpy(moved.get(), storage.data(), storage.nbytes());
  storage.set_data_ptr_noswap(std::move(moved));
}

}  // namespace

void StepMemory::renew(bool wanted) {
  arena_ = wanted ? std::make_shared<StepArena>() : nullptr;
  needed_ = workers_ = Bytes(0);
  renewals_ = 0;
}

void StepMemory::evacuate() {
  for (const auto& weak : handed_out_) {
    const auto storage = weak.lock();
    if (storage && arena_ && arena_->contains(storage->data())) move_to_heap(*storage);
  }
  handed_out_.clear();
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

StepMemory::RunScope::RunScope(StepMemory& memory) : memory_(memory), source_(memory.arena_) {
  if (memory_.arena_) memory_.arena_->begin_run();
  take_cpu_workers_peak();
}

void StepMemory::RunScope::finish() {
  if (memory_.arena_) memory_.arena_->end_run();
  memory_.workers_ = Bytes(take_cpu_workers_peak());
}

bool StepMemory::plan_places(Bytes room) {
  if (!arena_ || !arena_->recorded()) return true;
  if (arena_->ready()) {
    if (arena_->fallbacks() > 0 && ++renewals_ <= kRenewals) arena_ = std::make_shared<StepArena>();
    return true;
  }
  arena_->pack_blocks(room - workers_);
  needed_ = arena_->height() + workers_;
  if (!arena_->ready()) arena_.reset();  // The arena does not fit, or the system has no memory.
  return needed_ <= room;
}

}  // namespace reprise::runtime::internal::arena
