// This is an arena that holds all memory of a replayed step at planned places. As in Sekiyama et
// al. 2018, allocation k of a replay gets the place that was planned for allocation k of the run
// that was recorded.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "reprise/model/units.h"
#include "reprise/pack/pack.h"
#include "reprise/pack/pages.h"
#include "reprise/runtime/allocator.h"
#include "runtime/arena/arena_memory.h"
#include "runtime/arena/page_memory.h"
#include "runtime/device/tensor_bytes.h"

namespace reprise::runtime::internal::arena {

// Returns places for blocks, in pages of this system's size, at multiples of the alignment. No more
// effort is made once the height is at most `enough`.
PagedPacking placement(std::span<const Block> blocks, Bytes enough, Bytes page = system_page(),
                       Bytes alignment = Bytes(device::kBlockAlignment));

// Returns places as an arena on the device takes them. Only the CPU has pages.
PagedPacking placement_on(c10::Device device, std::span<const Block> blocks, Bytes enough);

// A StepArena first records one run, which the heap serves: that of the CPU, or the own allocator of
// another device. pack_blocks() then plans the places. Later runs get these places as long as they
// allocate and free exactly as the recorded run did. At the first difference the heap serves the
// rest of the run, which is always safe, and the arena counts these allocations.
//
// On a device other than the CPU, blocks of the heap may be larger than what was asked for, so many
// of them need more than the plan says. There the recorded run gets one block of `scratch` bytes,
// and the heap serves what does not fit into it.
//
// Memory: `height()` bytes, from pack_blocks() on until the arena and all that lies in it are gone.
// On other devices it is `scratch` bytes in the recorded run, and `height()` bytes from the next one
// on; the two never exist together.
class StepArena final : public BlockSource {
 public:
  explicit StepArena(c10::Device device = c10::Device(c10::kCPU), Bytes scratch = Bytes(0))
      : device_(device), scratch_bytes_(scratch) {}
  StepArena(const StepArena&) = delete;
  StepArena& operator=(const StepArena&) = delete;

  // Begin and end a run of the step. If a block of an earlier run is still held, the heap serves
  // the run.
  void begin_run();
  void end_run();

  bool recorded() const { return recorded_; }
  bool ready() const { return memory_ != nullptr || pending_; }
  // Plans the places of the blocks that were recorded. Takes the memory if its height is at most
  // `most`.
  void pack_blocks(Bytes most);
  Bytes height() const { return places_.height; }
  Bytes live_bytes() const { return places_.live_bytes; }

  // Return the numbers of allocations in the last run that the arena and the heap served.
  int64_t served() const { return served_; }
  int64_t fallbacks() const { return fallbacks_; }
  bool contains(const void* data) const {
    return (memory_ && memory_->contains(data)) || (scratch_ && scratch_->contains(data));
  }
  // Says whether blocks of earlier runs are still held.
  bool holds_blocks() const { return !live_.empty(); }
  // Returns the number of the live block at this address. There is one.
  size_t block_at(const void* data) const { return live_.at(data); }
  // Makes a block live again without a run, where a device graph has written it. Returns its address.
  void* revive(size_t block);
  int64_t bytes_of(size_t block) const { return blocks_[block].bytes.count(); }
  // Gives the memory back until the next run, and keeps the places. Returns false if it cannot:
  // blocks are still held, nothing was placed, or the arena lies on another device than the CPU.
  bool rest();

  void* take(int64_t bytes) override;
  void give_back(void* data, int64_t bytes) override;

 private:
  void* take_recorded(int64_t bytes);
  void* take_planned(int64_t bytes);
  void* take_from_heap(int64_t bytes);
  void give_to_heap(void* data, int64_t bytes);

  const c10::Device device_;
  const Bytes scratch_bytes_;
  std::unique_ptr<DeviceScratch> scratch_;  // of the recorded run
  bool pending_ = false;       // The memory is taken at the next run, when the scratch is empty.
  std::vector<Block> blocks_;  // in the order of allocation; times count allocations and frees
  PagedPacking places_;
  std::unique_ptr<ArenaMemory> memory_;
  std::unordered_map<const void*, size_t> live_;  // by address: the number of the block
  bool recorded_ = false, running_ = false, diverged_ = false;
  size_t next_ = 0;    // the block that is expected next
  size_t placed_ = 0;  // number of live blocks that lie in the arena
  int64_t clock_ = 0;  // number of allocations and frees in this run
  int64_t served_ = 0, fallbacks_ = 0;
};

}  // namespace reprise::runtime::internal::arena
