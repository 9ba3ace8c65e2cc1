// These are the values of a step that a plan moves out of the device's memory and back.
//
// A value keeps its storages, and only their memory goes: autograd's graph, the step, and whoever
// else holds a tensor of the value hold the same storages all the time. So nothing of the graph is
// taken apart, and version counters stay as they are. Until the bytes are back, an access to such a
// storage throws.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "reprise/model/graph.h"
#include "reprise/run/interpreter.h"
#include "runtime/device/made_storages.h"
#include "runtime/transfer/copies.h"

namespace reprise::runtime::internal::chain {

// The functions are called in the order of the plan, on one thread at a time. The destructor ends the
// copies that are under way.
class MovedValues {
 public:
  // `moves` says by value whether the plan moves it (transfer::moved_by()).
  MovedValues(std::vector<bool> moves, transfer::OffloadMemories memories);
  ~MovedValues();
  MovedValues(const MovedValues&) = delete;
  MovedValues& operator=(const MovedValues&) = delete;

  bool moves(ValueIndex value) const { return moves_[value]; }
  // A run has written the value, which moves.
  void set(ValueIndex value, std::vector<device::WeakStorage> storages);

  void copy(const CopyAction& copy);
  void wait(ValueIndex value, int32_t memory);
  // Frees the memory of a value on the device. Returns false, and does nothing, if the value is
  // nowhere else.
  bool leave(ValueIndex value);
  void free(ValueIndex value, int32_t memory);

  // Ends the copies that are under way, and forgets all values. Storages without memory stay so.
  void end() noexcept;
  const transfer::MovedBytes& moved() const { return copies_.moved(); }

 private:
  std::vector<c10::Storage> storages_of(ValueIndex value) const;

  const std::vector<bool> moves_;
  transfer::Copies copies_;
  std::map<ValueIndex, std::vector<device::WeakStorage>> storages_;
  // The memory that the storages of a value get when its copy is over.
  std::map<ValueIndex, std::vector<c10::DataPtr>> coming_;
};

}  // namespace reprise::runtime::internal::chain
