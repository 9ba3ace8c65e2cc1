// These are the two sides of every movement of bytes in a step. A Residency says where the bytes of
// a value lie. A Carrier moves them on the channels of the machine, as the plan says.
//
//     OffloadCarrier   host memory or a disk behind the device
//     DeviceCarrier    devices that run operations
//     SumCarrier       the link of a process group: sums and exchanges (graph/link.h)
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Storage.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "reprise/model/graph.h"
#include "reprise/model/units.h"
#include "reprise/run/interpreter.h"
#include "runtime/device/stopwatch.h"
#include "runtime/transfer/offload_memory.h"

namespace reprise::runtime::internal::transfer {

// A Resident is a storage with bytes of a value. The memory of a caller may have a part of them
// alone, which may begin anywhere in its storage.
struct Resident {
  Resident(c10::Storage memory)  // NOLINT: a storage that has all bytes of the value, and no others
      : storage(std::move(memory)),
        bytes(static_cast<int64_t>(storage.nbytes())),
        count(bytes) {}
  Resident(c10::Storage memory, int64_t of_value, int64_t first, int64_t where, int64_t how_many)
      : storage(std::move(memory)),
        bytes(of_value),
        begin(first),
        offset(where),
        count(how_many) {}

  c10::Storage storage;
  int64_t bytes;       // that a copy of the value takes
  int64_t begin = 0;   // of the part among them
  int64_t offset = 0;  // of the part in the storage
  int64_t count;       // bytes of the part
};

class Residency {
 public:
  virtual ~Residency() = default;
  // Returns the storages of a value in a memory that computes. There are none if the value takes no
  // memory of the device: it then stays where it is when the plan moves it.
  virtual std::vector<Resident> residents(ValueIndex value, int32_t memory) = 0;
  // Gives the value the memory that a copy fills or has filled, one block for each of its storages.
  virtual void arrive(ValueIndex value, int32_t memory, std::vector<c10::DataPtr> blocks) = 0;
  // Returns where a value lies behind the device that the step has not copied there. Null: nothing
  // comes, and what a run will make of the value has its room from now on.
  virtual ParcelPtr bring(ValueIndex /*value*/) { return nullptr; }
  // A copy of the value behind the device is over.
  virtual void sent(ValueIndex /*value*/, const ParcelPtr& /*parcel*/) {}
};

// The sums over the copies of a step.
struct MovedBytes {
  Bytes out, in;
  Nanos waited;  // by the step, for copies

  bool operator==(const MovedBytes&) const = default;
};

// The functions are called in the order of the plan, on one thread at a time. Wherever an exception
// leaves a step, end() must be called before the memory of its values is used for something else.
class Carrier {
 public:
  virtual ~Carrier() = default;
  virtual void copy(const CopyAction& copy) = 0;  // begins
  // Waits for the copy that makes the value there. Does nothing if there is none: it has been
  // waited for, or a run made the value.
  virtual void wait(ValueIndex value, int32_t memory) = 0;
  // The bytes there are given back or written over, and no copy needs them any more.
  virtual void free(ValueIndex value, int32_t memory) = 0;
  // Ends the copies that are under way, and forgets all values.
  virtual void end() noexcept = 0;

  const MovedBytes& moved() const { return moved_; }
  MovedBytes take_moved() { return std::exchange(moved_, {}); }

 protected:
  template <class Wait>
  void timed(Wait&& wait) {
    const Nanos before = device::wall_clock();
    wait();
    moved_.waited += device::wall_clock() - before;
  }

  MovedBytes moved_;
};

// By memory of the machine: what carries to it and from it. Null or no entry: nothing does.
using Carriers = std::vector<std::shared_ptr<Carrier>>;

// Takes memory of this device, whatever device is current.
inline c10::DataPtr take_memory(c10::Device device, int64_t bytes) {
  const c10::DeviceGuard current(device);
  return c10::GetAllocator(device.type())->allocate(static_cast<size_t>(bytes));
}

}  // namespace reprise::runtime::internal::transfer
