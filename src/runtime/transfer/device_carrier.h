// Carries values between the devices on which the operations of a step run.
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
#include "runtime/transfer/carrier.h"

namespace reprise::runtime::internal::transfer {

// A value has its memory on a device from the beginning of the copy on, as the simulator counts it.
class DeviceCarrier final : public Carrier {
 public:
  // `devices` are those of the memories of the machine. They are the CPU and devices of one other
  // type. The residency outlives the carrier.
  DeviceCarrier(std::vector<c10::Device> devices, const Machine& machine, Residency& residency);
  ~DeviceCarrier() override { end(); }
  DeviceCarrier(const DeviceCarrier&) = delete;
  DeviceCarrier& operator=(const DeviceCarrier&) = delete;

  void copy(const CopyAction& copy) override;
  // Lets the device of this memory wait, and the host if it is the CPU.
  void wait(ValueIndex value, int32_t memory) override;
  // Lets the device of this memory wait for all copies of the value that begin or end there.
  void free(ValueIndex value, int32_t memory) override;
  void end() noexcept override;

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
  Residency& residency_;
  std::vector<Lane> lanes_;                                                 // by channel
  std::map<std::pair<ValueIndex, int32_t>, std::vector<EventPtr>> events_;  // by value and memory
  std::map<std::pair<ValueIndex, int32_t>, EventPtr> arrivals_;             // by value and memory
  std::map<int64_t, EventPtr> by_action_;
  std::map<int32_t, EventPtr> last_;  // by queue: the copy that was begun last
};

// Measures the machine that these devices are: the bandwidth and the latency of a copy from each to
// each other one, while nothing else is under way. Memories have the names of the devices, and no
// capacities.
Machine measure_devices(const std::vector<c10::Device>& devices);

}  // namespace reprise::runtime::internal::transfer
