// This is the memory of a captured step from run to run: an arena, and the blocks of it that the
// caller still holds.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <memory>
#include <optional>
#include <vector>

#include "reprise/runtime/stage.h"
#include "runtime/arena/arena.h"

namespace reprise::runtime::internal::arena {

class StepMemory {
 public:
  // Begins anew for another plan, with an arena on the device if it is `wanted`; else the heap
  // serves. Blocks in the arena of an earlier plan stay valid.
  // On a device other than the CPU, the run that is recorded gets `scratch` bytes in one block.
  void renew(bool wanted, c10::Device device, Bytes scratch);

  // Takes no memory until the next run, and keeps the places if it can.
  void rest();
  // Says whether an arena serves or records runs.
  bool has_arena() const { return arena_ != nullptr; }

  // Moves the blocks that the caller still holds of the last run to the heap, so that their places
  // are free.
  void evacuate();
  // Says whether the arena serves runs, and no block of an earlier run is held.
  bool free_arena() const { return arena_ && arena_->ready() && !arena_->holds_blocks(); }
  // A HeldBlock is a block of the arena that a storage holds at the end of a run.
  struct HeldBlock {
    size_t block = 0;
    size_t bytes = 0;  // of the storage
  };
  // Returns the block that the storage lies in, or nothing if it lies elsewhere.
  std::optional<HeldBlock> held_by(const c10::Storage& storage) const;
  // Makes a storage on the block, which a device graph has written again.
  c10::Storage revive(const HeldBlock& held);
  // Counts the peak of a run that a device graph made in the arena.
  void count_run();
  // Returns what keeps the arena where it is, for memory that somebody else still writes.
  std::shared_ptr<void> keep() const { return arena_; }
  // Notes that the tensor leaves the step, so that the caller may hold it when the next run begins.
  void hand_out(const at::Tensor& tensor);
  // Moves tensors from the arena to the heap for good, so that an array of NumPy, for example, may
  // keep their address. Tensors that share memory share it afterwards.
  void move_out(Tensors& tensors) const;

  // While a RunScope lives, the arena serves or records this thread's allocations.
  class RunScope {
   public:
    explicit RunScope(StepMemory& memory);
    // Leaves the allocations of this thread alone until resume().
    void pause() { source_.reset(); }
    void resume();
    // Says that the run is complete. Without this call the run leaves no trace in the arena.
    void finish();

   private:
    StepMemory& memory_;
    std::optional<BlockSourceScope> source_;
  };

  // Plans places after a run that was recorded, or starts anew after a served run that was
  // different. Returns false if the places need more than `room`; the heap goes on serving then.
  bool plan_places(Bytes room);

  // Returns the bytes of the arena, or 0 while the heap serves.
  Bytes height() const { return arena_ && arena_->ready() ? arena_->height() : Bytes(0); }
  // Returns the bytes of the arena and of the scratch memory that threads of operations take from
  // the heap beside it. It is 0 while the heap serves.
  Bytes footprint() const { return height() > Bytes(0) ? height() + workers_ : Bytes(0); }
  // Returns the footprint that the last attempt to place would have had.
  Bytes needed() const { return needed_; }
  Bytes live_bytes() const { return arena_ && arena_->ready() ? arena_->live_bytes() : Bytes(0); }
  // Return the numbers of allocations in the last run that the arena and the heap served.
  int64_t served() const { return arena_ ? arena_->served() : 0; }
  int64_t fallbacks() const { return arena_ ? arena_->fallbacks() : 0; }

 private:
  c10::Device device_{c10::kCPU};
  Bytes scratch_;
  std::shared_ptr<StepArena> arena_;  // null while the heap serves
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> handed_out_;
  Bytes needed_;
  Bytes workers_;     // scratch memory of the threads of operations in the last run
  int renewals_ = 0;  // number of arenas that were recorded again for this plan
};

}  // namespace reprise::runtime::internal::arena
