#include "runtime/transfer/device_carrier.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

#include "runtime/device/device.h"
#include "runtime/device/stopwatch.h"

namespace reprise::runtime::internal::transfer {

using device::synchronize;
using device::wall_clock;

namespace {

constexpr int64_t kLargeCopy = 8 << 20;  // bytes of a copy that shows the bandwidth
constexpr int64_t kSmallCopy = 64;       // bytes of a copy that shows the latency
constexpr int kTimedCopies = 3;          // of which the fastest counts

c10::impl::VirtualGuardImpl guard_of(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type());
}

std::optional<c10::Stream> own_stream(c10::Device device) {
  if (device.is_cpu()) return std::nullopt;
  return guard_of(device).getStreamFromGlobalPool(device);
}

// Copies on these streams, without a wait of the host where the device can do without.
void copy_on(const std::optional<c10::Stream>& from_stream,
             const std::optional<c10::Stream>& to_stream, const at::Tensor& from,
             const at::Tensor& to) {
  const at::NoGradGuard no_grad;
  const c10::OptionalStreamGuard at_source(from_stream), at_target(to_stream);
  to.copy_(from, /*non_blocking=*/true);
}

// Returns bytes of a storage as a tensor.
at::Tensor part_of(const c10::Storage& storage, int64_t begin, int64_t count) {
  const auto type = at::kChar;
  const c10::DispatchKeySet keys(c10::computeDispatchKey(type, c10::kStrided, storage.device()));
  const at::Tensor part = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage), keys, c10::scalarTypeToTypeMeta(type));
  const std::vector<int64_t> sizes{count}, strides{1};
  part.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, begin);
  return part;
}

Nanos fastest_copy(c10::Device from, c10::Device to, int64_t bytes) {
  const at::Tensor source = at::empty({bytes}, at::TensorOptions(from).dtype(at::kByte));
  const at::Tensor target = at::empty({bytes}, at::TensorOptions(to).dtype(at::kByte));
  source.zero_();
  Nanos best;
  for (int copy = 0; copy < 1 + kTimedCopies; ++copy) {  // The first one is slower.
    synchronize(from);
    synchronize(to);
    const Nanos before = wall_clock();
    copy_on({}, {}, source, target);
    synchronize(from);
    synchronize(to);
    const Nanos time = std::max(Nanos(1), wall_clock() - before);
    if (copy == 1 || (copy > 1 && time < best)) best = time;
  }
  return best;
}

}  // namespace

DeviceCarrier::DeviceCarrier(std::vector<c10::Device> devices, const Machine& machine,
                             Residency& residency)
    : devices_(std::move(devices)), machine_(machine), residency_(residency) {
  for (const Channel& channel : machine_.channels) {
    lanes_.push_back({own_stream(devices_.at(channel.from)), own_stream(devices_.at(channel.to))});
  }
}

void DeviceCarrier::hold_up(int32_t memory, const c10::Event& event) {
  const c10::Device device = devices_[memory];
  if (!device.is_cpu()) return event.block(guard_of(device).getStream(device));
  timed([&] { event.synchronize(); });
}

// The host itself may read the memory of the CPU that a copy comes from.
void DeviceCarrier::hold_up_copy(const Lane& lane, int32_t from, const c10::Event& event) {
  if (lane.from) event.block(*lane.from);
  if (lane.to) event.block(*lane.to);
  if (!lane.from) hold_up(from, event);
}

void DeviceCarrier::copy(const CopyAction& copy) {
  const Resident source = residency_.residents(copy.value, copy.from).at(0);
  std::vector<c10::DataPtr> memory;
  memory.push_back(take_memory(devices_.at(copy.to), source.bytes));
  residency_.arrive(copy.value, copy.to, std::move(memory));
  const Resident target = residency_.residents(copy.value, copy.to).at(0);
  const at::Tensor from = part_of(source.storage, source.offset, source.count),
                   to = part_of(target.storage, target.offset + source.begin, source.count);
  const Lane& lane = lanes_.at(copy.channel);
  const c10::Stream on = lane.to ? *lane.to : lane.from.value();
  const auto done = std::make_shared<c10::Event>(on.device_type());
  for (const auto& stream : {lane.from, lane.to}) {
    if (!stream) continue;
    c10::Event ready(stream->device_type());
    ready.record(guard_of(stream->device()).getStream(stream->device()));
    for (const auto& held : {lane.from, lane.to}) {
      if (held) ready.block(*held);
    }
  }
  EventPtr& last = last_[queue_of(machine_, copy.channel)];
  if (last) hold_up_copy(lane, copy.from, *last);
  if (const auto came = arrivals_.find({copy.value, copy.from}); came != arrivals_.end()) {
    hold_up_copy(lane, copy.from, *came->second);
  }
  for (const int64_t action : copy.after) {
    if (const auto other = by_action_.find(action); other != by_action_.end()) {
      hold_up_copy(lane, copy.from, *other->second);
    }
  }
  copy_on(lane.from, lane.to, from, to);
  done->record(on);
  last = by_action_[copy.action] = arrivals_[{copy.value, copy.to}] = done;
  events_[{copy.value, copy.from}].push_back(done);
  events_[{copy.value, copy.to}].push_back(done);
  (copy.to == 0 ? moved_.in : moved_.out) += Bytes(from.numel());
}

void DeviceCarrier::wait(ValueIndex value, int32_t memory) {
  const auto came = arrivals_.find({value, memory});
  if (came == arrivals_.end()) return;
  hold_up(memory, *came->second);
  arrivals_.erase(came);
}

void DeviceCarrier::free(ValueIndex value, int32_t memory) {
  const auto found = events_.find({value, memory});
  if (found == events_.end()) return;
  for (const EventPtr& event : found->second) hold_up(memory, *event);
  events_.erase(found);
  arrivals_.erase({value, memory});
}

void DeviceCarrier::end() noexcept {
  try {
    while (!events_.empty()) {
      const auto [value, memory] = events_.begin()->first;
      free(value, memory);
    }
  } catch (const std::exception&) {
    // A device has failed. Its own error reaches the caller at the next operation.
    events_.clear();
  }
  arrivals_.clear();
  by_action_.clear();
  last_.clear();
}

Machine measure_devices(const std::vector<c10::Device>& devices) {
  Machine machine;
  machine.memories.clear();
  for (const c10::Device device : devices) {
    machine.memories.push_back({.name = device.str(), .computes = !machine.memories.empty()});
  }
  for (size_t from = 0; from < devices.size(); ++from) {
    for (size_t to = 0; to < devices.size(); ++to) {
      if (from == to) continue;
      const Nanos latency = fastest_copy(devices[from], devices[to], kSmallCopy);
      const Nanos whole = fastest_copy(devices[from], devices[to], kLargeCopy);
      const auto moving = static_cast<double>(std::max<int64_t>(1, (whole - latency).count()));
      machine.channels.push_back(
          {static_cast<int32_t>(from), static_cast<int32_t>(to),
           std::max<int64_t>(1,
                             static_cast<int64_t>(1e9 * static_cast<double>(kLargeCopy) / moving)),
           latency, -1});
    }
  }
  return machine;
}

}  // namespace reprise::runtime::internal::transfer
