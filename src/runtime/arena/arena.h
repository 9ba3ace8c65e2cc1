// An arena that holds all memory of a replayed step at planned places. As in Sekiyama et al. 2018,
// allocation k of a replay gets the place that was planned for allocation k of the run that was
// recorded.
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
#include "runtime/arena/page_memory.h"

namespace reprise::runtime::internal::arena {

// Returns places for blocks, in pages of this system's size. No more effort is made once the height
// is at most `enough`.
PagedPacking placement(std::span<const Block> blocks, Bytes enough, Bytes page = system_page());

// A StepArena first records one run, which the heap serves. pack_blocks() then plans the places.
// Later runs get these places as long as they allocate and free exactly as the recorded run did. At
// the first difference the heap serves the rest of the run, which is always safe, and the arena
// counts these allocations.
//
// Memory: `height()` bytes, from pack_blocks() on until the arena and all that lies in it are gone.
class StepArena final : public BlockSource {
 public:
  StepArena() = default;
  StepArena(const StepArena&) = delete;
  StepArena& operator=(const StepArena&) = delete;

  // Begin and end a run of the step. If a block of an earlier run is still held, the heap serves
  // the run.
  void begin_run();
  void end_run();

  bool recorded() const { return recorded_; }
  bool ready() const { return memory_ != nullptr; }
  // Plans the places of the blocks that were recorded. Takes the memory if its height is at most
  // `most`.
  void pack_blocks(Bytes most);
  Bytes height() const { return places_.height; }
  Bytes live_bytes() const { return places_.live_bytes; }

  // Return the numbers of allocations in the last run that the arena and the heap served.
  int64_t served() const { return served_; }
  int64_t fallbacks() const { return fallbacks_; }
  bool contains(const void* data) const { return memory_ && memory_->contains(data); }

  void* take(int64_t bytes) override;
  void give_back(void* data, int64_t bytes) override;

 private:
  void* take_recorded(int64_t bytes);
  void* take_planned(int64_t bytes);

  std::vector<Block> blocks_;  // in the order of allocation; times count allocations and frees
  PagedPacking places_;
  std::unique_ptr<PageMemory> memory_;
  std::unordered_map<const void*, size_t> live_;  // by address: the number of the block
  bool recorded_ = false, running_ = false, diverged_ = false;
  size_t next_ = 0;    // the block that is expected next
  size_t placed_ = 0;  // number of live blocks that lie in the arena
  int64_t clock_ = 0;  // number of allocations and frees in this run
  int64_t served_ = 0, fallbacks_ = 0;
};

}  // namespace reprise::runtime::internal::arena
