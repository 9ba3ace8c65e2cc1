#include "runtime/online/tracer.h"

#include <algorithm>

#include "reprise/runtime/allocator.h"
#include "runtime/device/room.h"
#include "runtime/device/tensor_bytes.h"
#include "runtime/step/operators.h"

namespace reprise::runtime::internal::online {
namespace {

constexpr size_t kLookEach = 16;  // calls

void add_serial(std::vector<int32_t>& list, size_t begin, const Value& value) {
  const auto serial = static_cast<int32_t>(value.serial);
  if (std::find(list.begin() + static_cast<std::ptrdiff_t>(begin), list.end(), serial) ==
      list.end())
    list.push_back(serial);
}

}  // namespace

Tracer::Tracer(Values& values, Trace first, int64_t smallest, c10::Device device)
    : values_(values), smallest_(smallest), device_(device), trace_(std::move(first)) {
  values_.note_anchored(true);
}

int64_t Tracer::live_bytes() const { return memory_count(device_).live; }

// Returns the bytes that a value takes on the device.
int64_t Tracer::counted(const Value& value) const {
  return value.device == device_ ? device::counted_bytes(value.bytes, device_) : 0;
}

TracedValue& Tracer::entry(const Value& value) {
  const auto serial = static_cast<size_t>(value.serial);
  if (serial >= trace_.values.size()) trace_.values.resize(serial + 1);
  TracedValue& entry = trace_.values[serial];
  entry.bytes = value.bytes;
  entry.counted = counted(value);
  entry.outside = value.outside;
  return entry;
}

void Tracer::begin(const ObservedCall& call) {
  if (call.record) return;
  for (const ValuePtr& value : call.pinned) {
    if (!value->outside) add_serial(looked_at_, 0, *value);
  }
}

void Tracer::kernel_begins(const ObservedCall& call) {
  if (!call.record || call.within_leaf) return;
  live_before_ = live_bytes();
  device::take_recent_peak(device_);
  most_ = evicted_ = 0;
  began_ = Clock::now();
}

void Tracer::kernel_ended(const ObservedCall& call) {
  if (!call.record || call.within_leaf) return;
  cost_ = std::chrono::duration<double, std::nano>(Clock::now() - began_).count();
  most_ = std::max(most_, device::take_recent_peak(device_) + evicted_);
  used_ = most_ - live_before_;
  measured_ = true;
}

void Tracer::make_room_begins() {
  room_began_ = Clock::now();
  most_ = std::max(most_, device::take_recent_peak(device_) + evicted_);
  room_live_ = live_bytes();
}

// The time is none of the kernel's.
void Tracer::make_room_ended() {
  evicted_ += room_live_ - live_bytes();
  device::take_recent_peak(device_);
  began_ += Clock::now() - room_began_;
}

int64_t Tracer::bytes_made(const ObservedCall& call) const {
  int64_t bytes = 0;
  for (const ValuePtr& value : call.fresh) {
    if (value->writes == 0) bytes += counted(*value);
  }
  return bytes;
}

void Tracer::end(const ObservedCall& call, uint64_t print) {
  if (!call.record) {
    const auto last = static_cast<int32_t>(trace_.calls.size()) - 1;
    for (const ValuePtr& value : call.pinned) {
      if (last < 0 || value->outside || value->serial >= trace_.values.size()) continue;
      if (trace_.values[value->serial].maker < last) {
        trace_.holds.push_back({last, static_cast<int32_t>(value->serial)});
      }
    }
    return;
  }
  const RecordedCall& record = *call.record;
  std::vector<int32_t>& lists = trace_.values_of_calls;
  const auto here = static_cast<int32_t>(trace_.calls.size());
  TracedCall traced;
  traced.reads = static_cast<uint32_t>(lists.size());
  for_each_read(record, [&](const Value& value) {
    entry(value);
    add_serial(lists, traced.reads, value);
  });
  traced.looked_at = static_cast<uint32_t>(lists.size());
  for (const int32_t serial : looked_at_) lists.push_back(serial);
  looked_at_.clear();
  traced.made = static_cast<uint32_t>(lists.size());
  for (const ValuePtr& value : call.fresh) {
    TracedValue& made = entry(*value);
    if (made.outside) continue;
    made.maker = here;
    lists.push_back(static_cast<int32_t>(value->serial));
    const bool makeable = value->can_be_made() || value->blank_call;
    if (!makeable || value->bytes < smallest_) watch_.push_back({value->serial, value->home});
  }
  for (const Made& made : record.made) {
    const ValuePtr value = made.value.lock();
    if (!value || made.previous == nullptr || value->outside) continue;
    entry(*value).previous = static_cast<int32_t>(made.previous->serial);
  }
  traced.end = static_cast<uint32_t>(lists.size());
  traced.can_run_again = !record.made.empty();
  traced.backward = step::in_backward();
  const bool measured = std::exchange(measured_, false);
  traced.cost = call.record->measured = measured ? cost_ : record.cost;
  if (measured) traced.workspace = std::max<int64_t>(0, used_ - bytes_made(call));
  watch_anchored();
  if (trace_.calls.size() % kLookEach == 0) look_who_is_gone();
  traced.values = static_cast<uint32_t>(trace_.values.size());
  trace_.calls.push_back(traced);
  trace_.prints.push_back(print);
}

void Tracer::watch_anchored() {
  for (Values::Anchored& anchored : values_.take_anchored()) {
    if (anchored.serial >= trace_.values.size()) continue;
    TracedValue& value = trace_.values[anchored.serial];
    if (value.outside || value.anchored >= 0) continue;
    value.anchored = static_cast<int32_t>(trace_.calls.size()) + 1;
    watch_.push_back(std::move(anchored));
  }
}

void Tracer::look_who_is_gone() {
  std::erase_if(watch_, [&](const Values::Anchored& anchored) {
    if (!anchored.home.expired()) return false;
    trace_.values[anchored.serial].gone = static_cast<int32_t>(trace_.calls.size()) + 1;
    return true;
  });
}

Trace Tracer::finish() {
  values_.note_anchored(false);
  look_who_is_gone();
  values_.for_each_held([&](const Value& value) {
    if (value.serial < trace_.values.size()) trace_.values[value.serial].at_the_end = true;
  });
  return std::move(trace_);
}

}  // namespace reprise::runtime::internal::online
