// Where the memory of a captured step lies from run to run: an arena, and what the caller still holds of it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <memory>
#include <vector>

#include "runtime/arena/arena.h"
#include "reprise/runtime/stage.h"

namespace reprise::runtime::internal::arena {

class StepMemory {
 public:
  // From now on for another plan, or for none (`wanted` false: the heap serves). What lies in the arena of
  // the plan before stays valid.
  void renew(bool wanted);

  // Moves what the caller still holds of the last run to the heap, so that its place is free.
  void evacuate();
  // The tensor leaves the step: the caller may hold it when the next run begins.
  void hand_out(const at::Tensor& tensor);
  // Puts tensors on memory of the heap in place of the arena's, for good: whoever has their address, such as
  // an array of NumPy, may keep it. Those that share memory share it afterwards.
  void move_out(Tensors& tensors) const;

  // While it lives, the arena serves or records this thread's allocations.
  class RunScope {
   public:
    explicit RunScope(StepMemory& memory);
    // The run is complete; without this it leaves no trace in the arena.
    void finish();

   private:
    StepMemory& memory_;
    BlockSourceScope source_;
  };

  // After a run. Plans the places of what was recorded, or starts anew when a run was served that was
  // different. False: the places need more than `room`; the heap goes on serving.
  bool plan_places(Bytes room);

  // Bytes of the block; 0 while the heap serves.
  Bytes height() const { return arena_ && arena_->ready() ? arena_->height() : Bytes(0); }
  // The block, and what the threads of operations take from the heap beside it; 0 while the heap serves.
  Bytes footprint() const { return height() > Bytes(0) ? height() + workers_ : Bytes(0); }
  // The footprint that the last try to place it would have had.
  Bytes needed() const { return needed_; }
  Bytes live_bytes() const { return arena_ && arena_->ready() ? arena_->live_bytes() : Bytes(0); }
  // Of the last run.
  int64_t served() const { return arena_ ? arena_->served() : 0; }
  int64_t fallbacks() const { return arena_ ? arena_->fallbacks() : 0; }

 private:
  std::shared_ptr<StepArena> arena_;  // null: the heap
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> handed_out_;
  Bytes needed_;
  Bytes workers_;     // scratch of the threads of operations, in the last run
  int renewals_ = 0;  // since the plan
};

}  // namespace reprise::runtime::internal::arena
