#include "runtime/arena/arena.h"

#include <c10/util/Exception.h>

#include <limits>

#include "reprise/model/errors.h"
#include "runtime/device/device_heap.h"
#include "runtime/device/heap_block.h"
#include "runtime/device/tensor_bytes.h"

namespace reprise::runtime::internal::arena {

using device::count_arena;
using device::count_block;
using device::give_back_heap_block;
using device::give_back_idle_pages;
using device::granule;
using device::heap_of;
using device::take_heap_block;

namespace {

// The effort beyond the heuristics (PackOptions::steps) takes some hundredths of a second. Pages
// give a place to blocks for which it finds none.
constexpr int64_t kPlacementSteps = 4'000'000;
// With a page larger than any arena no block is cut.
const Bytes kNoPages(int64_t{1} << 60);
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

}  // namespace

PagedPacking placement(std::span<const Block> blocks, Bytes enough, Bytes page, Bytes alignment) {
  const Packing packing =
      pack(blocks, {.alignment = alignment, .enough = enough, .steps = kPlacementSteps});
  return in_pages(blocks, packing, {.alignment = alignment, .page = page});
}

PagedPacking placement_on(c10::Device device, std::span<const Block> blocks, Bytes enough) {
  if (device.is_cpu()) return placement(blocks, enough);
  return placement(blocks, enough, kNoPages, Bytes(granule(device)));
}

void StepArena::begin_run() {
  running_ = true;
  next_ = 0;
  clock_ = served_ = fallbacks_ = 0;
  if (!recorded_ && !scratch_ && scratch_bytes_ > Bytes(0)) {
    try {
      scratch_ = std::make_unique<DeviceScratch>(scratch_bytes_.count(), device_);
    } catch (const c10::OutOfMemoryError&) {
      // The device's memory is in pieces. The heap serves the run.
    }
  }
  if (pending_ && live_.empty()) {
    scratch_.reset();
    memory_ = take_memory(places_, device_);
    pending_ = false;
  }
  // If a block of an earlier run is still held, its place must not be used again.
  diverged_ = placed_ > 0 || pending_ || (memory_ && memory_->of_the_parent());
  if (!recorded_) blocks_.clear();
}

bool StepArena::rest() {
  if (!device_.is_cpu() || !memory_ || holds_blocks()) return false;
  memory_.reset();
  return pending_ = true;
}

void StepArena::end_run() {
  running_ = false;
  if (!recorded_) {
    for (Block& block : blocks_) {
      if (block.end == kNever) block.end = clock_;
    }
    recorded_ = true;
  }
}

void StepArena::pack_blocks(Bytes most) {
  if (!device_.is_cpu()) {
    places_ = placement_on(device_, blocks_, Bytes(0));
    pending_ = places_.height <= most;
    return;
  }
  places_ = placement(blocks_, Bytes(0));
  give_back_idle_pages();  // those of the recorded run
  if (places_.height <= most) memory_ = take_memory(places_, device_);
  if (memory_) return;
  // The system may refuse to map a page twice. Without any memory the heap goes on serving.
  PagedPacking adjacent = placement(blocks_, most, kNoPages);
  if (adjacent.height > most) return;
  memory_ = take_memory(adjacent, device_);
  if (memory_) places_ = std::move(adjacent);
}

void* StepArena::take(int64_t bytes) {
  if (!running_) return nullptr;
  return recorded_ ? take_planned(bytes) : take_recorded(bytes);
}

void* StepArena::take_recorded(int64_t bytes) {
  void* data = take_from_heap(bytes);
  if (data == nullptr) return nullptr;
  live_[data] = blocks_.size();
  blocks_.push_back({.bytes = Bytes(bytes), .begin = clock_++, .end = kNever});
  return data;
}

void* StepArena::take_planned(int64_t bytes) {
  const bool matches = ready() && !diverged_ && next_ < blocks_.size() &&
                       blocks_[next_].bytes.count() == bytes && blocks_[next_].begin == clock_;
  if (!matches) {
    diverged_ = true;
    ++fallbacks_;
    return nullptr;
  }
  void* data = memory_->address(next_);
  live_[data] = next_++;
  ++clock_;
  ++served_;
  ++placed_;
  if (!device_.is_cpu()) count_block(device_, bytes, 1);
  return data;
}

void* StepArena::revive(size_t block) {
  void* data = memory_->address(block);
  live_[data] = block;
  ++placed_;
  if (!device_.is_cpu()) count_block(device_, blocks_[block].bytes.count());
  return data;
}

void* StepArena::take_from_heap(int64_t bytes) {
  if (device_.is_cpu()) return take_heap_block(bytes);
  if (scratch_) {
    if (void* const data = scratch_->take(bytes)) return data;
    ++fallbacks_;
  }
  void* const data = heap_of(device_)->take(bytes, device_);
  count_arena(device_, bytes);
  count_block(device_, bytes);
  return data;
}

void StepArena::give_to_heap(void* data, int64_t bytes) {
  if (device_.is_cpu()) {
    give_back_heap_block(data);
  } else if (scratch_ && scratch_->contains(data)) {
    scratch_->give_back(data, bytes);
  } else {
    heap_of(device_)->give_back(data);
    count_arena(device_, -bytes);
    count_block(device_, -bytes);
  }
}

void StepArena::give_back(void* data, int64_t bytes) {
  const auto found = live_.find(data);
  if (found == live_.end()) return;
  const size_t block = found->second;
  live_.erase(found);
  if (!memory_ || !memory_->contains(data)) {  // The block is of the recorded run.
    if (running_ && !recorded_) blocks_[block].end = clock_++;
    give_to_heap(data, bytes);
    return;
  }
  --placed_;
  if (!device_.is_cpu()) count_block(device_, -bytes);
  if (!running_) return;
  // After a free at another moment than planned, the next blocks may overlap with blocks that are
  // still live.
  diverged_ = diverged_ || blocks_[block].end != clock_;
  ++clock_;
}

}  // namespace reprise::runtime::internal::arena
