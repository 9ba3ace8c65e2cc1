// These are the optimizer's state and the parameters in a memory behind the device: they are there
// between the steps, and come to the device for what reads them. What was written goes back.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/Storage.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "reprise/runtime/optimizer.h"
#include "runtime/graph/homed_values.h"
#include "runtime/transfer/carrier.h"
#include "runtime/transfer/offload_memory.h"

namespace reprise::runtime::internal::graph {

constexpr size_t kLeastMovableBytes =
    4096;  // of a storage that moves, so that a copy carries a page

// Returns the storages of the state that may move: those of the tensors that the optimizer names
// (ParameterOptimizer::state_of()) on this device, each of at least kLeastMovableBytes.
std::vector<c10::Storage> movable_state(const ParameterOptimizer& optimizer, size_t parameter,
                                        c10::Device device);
// Returns the bytes of these storages, as the device counts them.
int64_t counted(const std::vector<c10::Storage>& storages, c10::Device device);

enum class HomedKind : uint8_t { kState, kParameter };

// The tensors stay the optimizer's and the model's: only their memory goes and comes, and an access
// throws while it is away. State that the optimizer makes in a step lies on the device until it is sent.
//
// A step calls park(), then bring() .. leave() in the order of the plan, which a carrier follows
// (transfer/carrier.h), and at last commit() or undo(). Values are named by their positions in the list
// of expect(). What nobody writes is never sent, and may come several times in a step. The old bytes of
// what is written stay in the other memory until commit().
// One thread at a time.
class HomeStore {
 public:
  // The optimizer may be null if no state moves.
  HomeStore(std::shared_ptr<ParameterOptimizer> optimizer, c10::Device device,
            std::shared_ptr<transfer::OffloadMemory> memory);
  // Brings everything back. If that fails, an access throws an exception that says so.
  ~HomeStore();
  HomeStore(const HomeStore&) = delete;
  HomeStore& operator=(const HomeStore&) = delete;

  const std::shared_ptr<transfer::OffloadMemory>& memory() const { return memory_; }

  // Says what has its home there from now on, and what of it stays on the device. Everything else stays
  // where it is.
  void expect(const HomedValues& homed);
  // Returns the bytes of expected values that should be there and are on the device now, as the device
  // counts them.
  int64_t bytes_here() const;

  // Sends everything away that is expected and on the device, and brings back what should stay. Throws
  // InputError if that fails, or if something has other sizes than it had; what was sent by then stays
  // away.
  void park();
  // Brings everything of this kind back, until the next step. Throws InputError if that fails; what is
  // back by then stays.
  void fetch(HomedKind kind);
  // Does the same for what is not expected, or should stay.
  void fetch_unexpected();

  // The parts of a step. For state that is not there yet, bring() takes memory of the device and
  // returns null.
  transfer::ParcelPtr bring(size_t homed);
  // Returns its storages. Throws InputError if they have another size than expected.
  std::vector<transfer::Resident> residents(size_t homed);
  void arrive(size_t homed, std::vector<c10::DataPtr> blocks);
  void sent(size_t homed, const transfer::ParcelPtr& written);
  void leave(size_t homed);
  // The optimizer updates this parameter, by its number there.
  void before_update(size_t parameter);
  void after_update(size_t parameter);

  void commit();
  // Takes the step back. What the updates of these parameters have written stays as they left it, and
  // everything else is as before the step.
  void undo(const std::vector<size_t>& updated) noexcept;

 private:
  struct Entry {
    HomedKind kind = HomedKind::kState;
    std::string name;
    at::Tensor tensor;                   // the parameter, if it is one
    std::optional<size_t> parameter;     // the update of this one writes it
    int64_t bytes = 0;                   // 0: it is not expected, or stays on the device
    bool stays = false;
    std::vector<c10::Storage> storages;  // that were seen last
    transfer::ParcelPtr home;  // the bytes between the steps; null: they are on the device
    // In a step:
    bool here = false;            // the storages have their memory
    transfer::ParcelPtr written;  // what the update has left
    at::Tensor room;              // for state that the update will make
  };

  Entry& of(size_t homed) { return all_[by_homed_.at(homed)]; }
  Entry* state_of(size_t parameter);
  void fetch(Entry& entry);
  std::vector<c10::Storage> storages_now(const Entry& entry) const;
  void give(Entry& entry, std::vector<c10::DataPtr> blocks);
  void drop(Entry& entry);
  void keep_here(Entry& entry) noexcept;

  const std::shared_ptr<ParameterOptimizer> optimizer_;
  const c10::Device device_;
  const std::shared_ptr<transfer::OffloadMemory> memory_;
  std::vector<Entry> all_;
  // By what an entry is: the parameter's tensor, or the number of the parameter whose state it is.
  std::map<std::pair<const void*, size_t>, size_t> position_of_;
  std::vector<size_t> by_homed_;  // the positions of the homed that were expected last
};

}  // namespace reprise::runtime::internal::graph
