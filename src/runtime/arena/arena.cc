#include "runtime/arena/arena.h"

#include <limits>

#include "reprise/model/errors.h"
#include "runtime/device/heap_block.h"
#include "runtime/device/tensor_bytes.h"

namespace reprise::runtime::internal::arena {

using device::give_back_heap_block;
using device::give_back_idle_pages;
using device::kBlockAlignment;
using device::take_heap_block;

namespace {

// The effort beyond the heuristics (PackOptions::steps) takes some hundredths of a second. Pages
// give a place to blocks for which it finds none.
constexpr int64_t kPlacementSteps = 4'000'000;
// With a page larger than any arena no block is cut.
const Bytes kNoPages(int64_t{1} << 60);
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

}  // namespace

PagedPacking placement(std::span<const Block> blocks, Bytes enough, Bytes page) {
  const Bytes alignment(kBlockAlignment);
  const Packing packing =
      pack(blocks, {.alignment = alignment, .enough = enough, .steps = kPlacementSteps});
  return in_pages(blocks, packing, {.alignment = alignment, .page = page});
}

void StepArena::begin_run() {
  running_ = true;
  next_ = 0;
  clock_ = served_ = fallbacks_ = 0;
  // If a block of an earlier run is still held, its place must not be used again.
  diverged_ = placed_ > 0 || (memory_ && memory_->of_the_parent());
  if (!recorded_) blocks_.clear();
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
  places_ = placement(blocks_, Bytes(0));
  give_back_idle_pages();  // those of the recorded run
  if (places_.height <= most) memory_ = PageMemory::map(places_);
  if (memory_) return;
  // The system may refuse to map a page twice. Without any memory the heap goes on serving.
  PagedPacking adjacent = placement(blocks_, most, kNoPages);
  if (adjacent.height > most) return;
  memory_ = PageMemory::map(adjacent);
  if (memory_) places_ = std::move(adjacent);
}

void* StepArena::take(int64_t bytes) {
  if (!running_) return nullptr;
  return recorded_ ? take_planned(bytes) : take_recorded(bytes);
}

void* StepArena::take_recorded(int64_t bytes) {
  void* data = take_heap_block(bytes);
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
  return data;
}

void StepArena::give_back(void* data, int64_t) {
  const auto found = live_.find(data);
  if (found == live_.end()) return;
  const size_t block = found->second;
  live_.erase(found);
  if (!contains(data)) {  // The block is of the recorded run.
    if (running_ && !recorded_) blocks_[block].end = clock_++;
    give_back_heap_block(data);
    return;
  }
  --placed_;
  if (!running_) return;
  // After a free at another moment than planned, the next blocks may overlap with blocks that are
  // still live.
  diverged_ = diverged_ || blocks_[block].end != clock_;
  ++clock_;
}

}  // namespace reprise::runtime::internal::arena
