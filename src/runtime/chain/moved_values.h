// The values of a step that a plan moves out of the device's memory and back.
//
// A value keeps its storages, and only their memory goes: autograd's graph, the step, and whoever
// else holds a tensor of the value hold the same storages all the time. So nothing of the graph is
// taken apart, and version counters stay as they are. Until the bytes are back, an access to such a
// storage throws.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "reprise/model/graph.h"
#include "reprise/model/units.h"
#include "reprise/run/interpreter.h"
#include "runtime/device/made_storages.h"
#include "runtime/transfer/far_memory.h"

namespace reprise::runtime::internal::chain {

// Memories behind the device, by position in the machine; [0] is null.
using FarMemories = std::vector<std::shared_ptr<transfer::FarMemory>>;

// Returns, by value, whether the program copies it out of the device. Throws InputError for copies
// that do not begin or end at the device.
std::vector<bool> moved_by(const Program& program, size_t values);

// The sums over the copies of a step.
struct MovedBytes {
  Bytes out, in;
  Nanos waited;  // by the step, for copies

  bool operator==(const MovedBytes&) const = default;
};

// The functions are called in the order of the plan, on one thread at a time. The destructor ends the
// copies that are under way.
class MovedValues {
 public:
  // `graph` gives the bytes of the values, as planned.
  MovedValues(std::vector<bool> moves, FarMemories memories);
  ~MovedValues();
  MovedValues(const MovedValues&) = delete;
  MovedValues& operator=(const MovedValues&) = delete;

  bool moves(ValueIndex value) const { return moves_[static_cast<size_t>(value)]; }
  // A run has written the value, which moves.
  void set(ValueIndex value, std::vector<device::WeakStorage> storages);

  void copy(const CopyAction& copy);
  void wait(ValueIndex value, int32_t memory);
  // Frees the memory of a value on the device. Returns false, and does nothing, if the value is
  // nowhere else.
  bool leave(ValueIndex value);
  void free_elsewhere(ValueIndex value, int32_t memory);

  // Ends the copies that are under way, and forgets all values. Storages without memory stay so.
  void end() noexcept;
  const MovedBytes& moved() const { return moved_; }

 private:
  // A copy out of the device holds the storages that it reads. A copy into the device has the memory
  // that the storages are going to get.
  struct Copy {
    transfer::TicketPtr ticket;
    std::vector<c10::Storage> held = {};
    std::vector<c10::DataPtr> memory = {};
  };
  struct Elsewhere {
    transfer::ParcelPtr parcel;
    Copy out;
  };

  std::vector<c10::Storage> storages_of(ValueIndex value) const;
  std::vector<transfer::TicketPtr> tickets_of(const std::vector<int64_t>& actions) const;
  void wait_for(const transfer::TicketPtr& ticket);

  const std::vector<bool> moves_;
  const FarMemories memories_;
  std::map<ValueIndex, std::vector<device::WeakStorage>> storages_;
  std::map<std::pair<ValueIndex, int32_t>, Elsewhere> elsewhere_;
  std::map<ValueIndex, Copy> coming_;
  std::map<int64_t, transfer::TicketPtr> tickets_;  // by action
  MovedBytes moved_;
};

}  // namespace reprise::runtime::internal::chain
