// This is the optimizer's state in a memory behind the device: it is there between the steps, comes
// to the device for each update, and goes back behind it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/Storage.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "reprise/runtime/optimizer.h"
#include "runtime/step/updates.h"
#include "runtime/transfer/copies.h"
#include "runtime/transfer/far_memory.h"

namespace reprise::runtime::internal::graph {

// Returns the storages of the state that may move: those of the tensors that the optimizer names
// (ParameterOptimizer::state_of()) on this device, each of at least a page.
std::vector<c10::Storage> movable_state(const ParameterOptimizer& optimizer, size_t parameter,
                                        c10::Device device);
// Returns the bytes of these storages, as the device counts them.
int64_t counted(const std::vector<c10::Storage>& storages, c10::Device device);

// The tensors of the state stay the optimizer's: only their memory goes and comes, and an access throws
// while it is away. State that the optimizer makes in a step lies on the device until it is sent.
//
// A step calls park(), then for each update bring() .. leave() in the order of the plan, and at last
// commit() or undo(). The old bytes stay in the far memory until commit(). Parameters have their numbers in
// the optimizer. One thread at a time.
class FarState {
 public:
  FarState(std::shared_ptr<ParameterOptimizer> optimizer, c10::Device device,
           std::shared_ptr<transfer::FarMemory> memory);
  // Brings the state back. If that fails, an access to the state throws an exception that says so.
  ~FarState();
  FarState(const FarState&) = delete;
  FarState& operator=(const FarState&) = delete;

  const std::shared_ptr<transfer::FarMemory>& memory() const { return memory_; }

  // Says how many bytes of state the parameters of these updates have, as counted() has them, by update; 0
  // for state that stays.
  void expect(const step::Updates& updates, const std::vector<int64_t>& bytes);

  // Sends all state away that is on the device. Throws InputError if that fails, or if state has other
  // sizes than it had; what was sent by then stays away.
  void park();
  // Brings all state back, until the next step. Throws InputError if that fails; what is back by then
  // stays.
  void fetch();

  // The parts of a step. bring() takes memory of the device, for state that is not there yet, too.
  void bring(size_t parameter);
  void arrive(size_t parameter);
  void before_update(size_t parameter);
  void after_update(size_t parameter);
  void send(size_t parameter);
  void sent(size_t parameter);
  void leave(size_t parameter);

  void commit();
  // Takes the step back. State of the updates that were done is kept as they left it, and all other
  // state is that before the step.
  void undo(const std::vector<size_t>& updated) noexcept;

  const transfer::MovedBytes& moved() const { return moved_; }  // in the step

 private:
  struct Entry {
    int64_t bytes = 0;
    std::vector<c10::Storage> storages;  // of the state that was seen last
    transfer::ParcelPtr home;  // the bytes between the steps; null: they are on the device
    // In a step:
    bool here = false;                 // the storages have their memory
    std::vector<c10::DataPtr> memory;  // of what is coming
    transfer::TicketPtr coming, going;
    transfer::ParcelPtr written;  // what the update has left
    bool is_written = false;
    at::Tensor room;  // for state that the update will make
  };

  std::vector<c10::DataPtr> take_memory(const Entry& entry) const;
  // Returns what of this memory each storage will take.
  static std::vector<transfer::Block> blocks_in(const Entry& entry,
                                                const std::vector<c10::DataPtr>& memory);
  void give(Entry& entry);
  void drop(Entry& entry);
  void keep_here(Entry& entry) noexcept;
  void wait_for(transfer::Ticket& ticket);

  const std::shared_ptr<ParameterOptimizer> optimizer_;
  const c10::Device device_;
  const std::shared_ptr<transfer::FarMemory> memory_;
  std::vector<Entry> all_;
  transfer::MovedBytes moved_;
};

}  // namespace reprise::runtime::internal::graph
