#include "capture/arena.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cstdlib>
#include <limits>

#include "reprise/model/errors.h"

namespace reprise::runtime {
namespace {

constexpr int64_t kAlignment = 64;
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

}  // namespace

StepArena::~StepArena() {
  if (base_ != nullptr) munmap(base_, static_cast<size_t>(packing_.height.count()));
}

void StepArena::begin_run() {
  running_ = true;
  next_ = 0;
  clock_ = served_ = fallbacks_ = 0;
  // Something of an earlier run is still held: its place must not be used again.
  diverged_ = placed_ > 0;
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
  packing_ = pack(blocks_, {.alignment = Bytes(kAlignment), .steps = kPlacementSteps});
  if (packing_.height > most || packing_.height.count() == 0) return;
  const auto size = static_cast<size_t>(packing_.height.count());
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return;  // the heap goes on serving
  madvise(memory, size, MADV_HUGEPAGE);
  base_ = static_cast<char*>(memory);
}

bool StepArena::contains(const void* data) const {
  const char* address = static_cast<const char*>(data);
  return base_ != nullptr && address >= base_ && address < base_ + packing_.height.count();
}

void* StepArena::take(int64_t bytes) {
  if (!running_) return nullptr;
  return recorded_ ? take_planned(bytes) : take_recorded(bytes);
}

void* StepArena::take_recorded(int64_t bytes) {
  void* data = nullptr;
  if (posix_memalign(&data, kAlignment, static_cast<size_t>(bytes)) != 0) return nullptr;
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
  void* data = base_ + packing_.offsets[next_].count();
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
  if (!contains(data)) {  // of the recorded run
    if (running_ && !recorded_) blocks_[block].end = clock_++;
    std::free(data);
    return;
  }
  --placed_;
  if (!running_) return;
  // Freed at another moment than planned: what comes next may overlap with what is still there.
  diverged_ = diverged_ || blocks_[block].end != clock_;
  ++clock_;
}

}  // namespace reprise::runtime
