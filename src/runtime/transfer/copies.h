// These are the copies of one step between the device and the memories behind it.
//
// Chain mode and graph mode execute the copies and waits of a plan here. Each of them says where the
// memory of a value is, and does with memory that comes back what suits it.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Storage.h>

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "reprise/model/graph.h"
#include "reprise/model/units.h"
#include "reprise/run/interpreter.h"
#include "runtime/transfer/offload_memory.h"

namespace reprise::runtime::internal::transfer {

// Memories behind the device, by position in the machine; [0] is null.
using OffloadMemories = std::vector<std::shared_ptr<OffloadMemory>>;

// Returns, by value, whether the program copies it out of the device or into it. Throws InputError
// for copies that do not begin or end at the device.
std::vector<bool> moved_by(const Program& program, size_t values);

// The sums over the copies of a step.
struct MovedBytes {
  Bytes out, in;
  Nanos waited;  // by the step, for copies

  bool operator==(const MovedBytes&) const = default;
};

// The functions are called in the order of the plan, on one thread at a time. Wherever an exception
// leaves a step, end() must be called before the memory of its values is used for something else.
class Copies {
 public:
  explicit Copies(OffloadMemories memories) : memories_(std::move(memories)) {}
  ~Copies() { end(); }
  Copies(const Copies&) = delete;
  Copies& operator=(const Copies&) = delete;

  // Begins to copy the value, which lies in these storages. They are held until the copy has been
  // waited for.
  void out(const CopyAction& copy, std::vector<c10::Storage> storages);
  // Takes new memory of the device for the value, as much for each of its storages as it had when
  // it was copied out, and begins to copy it there. The caller keeps the memory until the copy has
  // been waited for.
  std::vector<c10::DataPtr> in(const CopyAction& copy);
  // Waits for the copy that makes the value in this memory. Returns false if there is none: it has
  // been waited for, or a run made the value.
  bool wait(ValueIndex value, int32_t memory);

  // Returns whether one of the memories has the value.
  bool has(ValueIndex value) const;
  void free(ValueIndex value, int32_t memory);

  // Ends the copies that are under way, and forgets all values.
  void end() noexcept;
  const MovedBytes& moved() const { return moved_; }

 private:
  // A HostCopy is a value in one of the memories.
  struct HostCopy {
    ParcelPtr parcel;
    TicketPtr out;
    std::vector<c10::Storage> held;  // until `out` has been waited for
    std::vector<int64_t> sizes;      // of the storages, in bytes
    c10::Device device = c10::kCPU;
  };

  std::vector<TicketPtr> tickets_of(const std::vector<int64_t>& actions) const;
  void wait_for(Ticket& ticket);

  const OffloadMemories memories_;
  std::map<std::pair<ValueIndex, int32_t>, HostCopy> host_copies_;
  std::map<ValueIndex, TicketPtr> coming_;
  std::map<int64_t, TicketPtr> tickets_;  // by action
  MovedBytes moved_;
};

}  // namespace reprise::runtime::internal::transfer
