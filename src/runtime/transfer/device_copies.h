// Executes the copies of one step between the devices on which its operations run.
//
// A copy runs on streams of its own, one at each end that has streams, beside what the devices
// compute. Events order it: it begins when both devices have done what was asked of this thread's
// current streams so far, and a device that needs its bytes waits for its event. The CPU has no
// streams. It runs what it is asked for at once, and the host waits where the CPU has to wait.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "reprise/model/machine.h"
#include "reprise/run/interpreter.h"
#include "runtime/transfer/copies.h"

namespace reprise::runtime::internal::transfer {

// The functions are called in the order of the plan, on one thread at a time. Wherever an exception
// leaves a step, end() must be called before the memory of its values is used for something else.
class DeviceCopies {
 public:
  // `devices` are those of the memories of the machine. They are the CPU and devices of one other
  // type.
  DeviceCopies(std::vector<c10::Device> devices, const Machine& machine);
  ~DeviceCopies() { end(); }
  DeviceCopies(const DeviceCopies&) = delete;
  DeviceCopies& operator=(const DeviceCopies&) = delete;

  // Begins to copy these bytes, one tensor to the other of its size. Their memory must stay until
  // settle() was called at both ends.
  void begin(const CopyAction& copy, const at::Tensor& from, const at::Tensor& to);
  // Lets the device of this memory wait for the copy that makes the value there. It does nothing if
  // there is none, or if it was waited for.
  void wait(ValueIndex value, int32_t memory);
  // Lets the device of this memory wait for all copies of the value that begin or end there. So its
  // bytes there may be written over or given back.
  void settle(ValueIndex value, int32_t memory);
  // Settles all values in all memories, and forgets them.
  void end() noexcept;

  const Machine& machine() const { return machine_; }
  // Returns what was moved since the last call: out of the first memory or on to others, and back
  // in.
  MovedBytes take_moved() { return std::exchange(moved_, {}); }

 private:
  using EventPtr = std::shared_ptr<c10::Event>;
  struct Lane {
    std::optional<c10::Stream> from, to;  // there is none on the CPU
  };

  // Lets the device of this memory go on only behind the event.
  void hold_up(int32_t memory, const c10::Event& event);
  void hold_up_copy(const Lane& lane, int32_t from, const c10::Event& event);

  const std::vector<c10::Device> devices_;
  const Machine machine_;
  std::vector<Lane> lanes_;                                                 // by channel
  std::map<std::pair<ValueIndex, int32_t>, std::vector<EventPtr>> events_;  // by value and memory
  std::map<std::pair<ValueIndex, int32_t>, EventPtr> arrivals_;             // by value and memory
  std::map<int64_t, EventPtr> by_action_;
  std::map<int32_t, EventPtr> last_;  // by queue: the copy that was begun last
  MovedBytes moved_;
};

// Measures the machine that these devices are: the bandwidth and the latency of a copy from each to
// each other one, while nothing else is under way. Memories have the names of the devices, and no
// capacities.
Machine measure_devices(const std::vector<c10::Device>& devices);

}  // namespace reprise::runtime::internal::transfer
