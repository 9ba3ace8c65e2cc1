#include "backend.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <memory>

#include "accelerator.h"
#include "allocators.h"
#include "device_memory.h"
#include "generator.h"
#include "pinned_memory.h"
#include "streams.h"

namespace sim {
namespace {

class SimGuard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return c10::DeviceType::PrivateUse1; }
  c10::Device exchangeDevice(c10::Device to) const override {
    return device(to.has_index() ? exchange_device(to.index()) : current_device());
  }
  c10::Device getDevice() const override { return device(current_device()); }
  void setDevice(c10::Device to) const override { exchangeDevice(to); }
  void uncheckedSetDevice(c10::Device to) const noexcept override {
    if (to.index() >= 0 && to.index() < device_count()) exchange_device(to.index());
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(device_count());
  }

  c10::Stream getStream(c10::Device of) const override {
    return stream_of(current_stream(index(of)));
  }
  c10::Stream getDefaultStream(c10::Device of) const override {
    return stream_of(index(of) * kStreamsPerDevice);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device of, bool) const override {
    return stream_of(next_stream(index(of)));
  }
  c10::Stream getNewStream(c10::Device of, int) const override {
    return stream_of(next_stream(index(of)));
  }
  c10::Stream exchangeStream(c10::Stream to) const override {
    return stream_of(exchange_stream(stream_number(to)));
  }
  bool queryStream(const c10::Stream& stream) const override {
    return streams().is_over(stream_number(stream));
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    streams().host_waits(stream_number(stream));
  }
  void synchronizeDevice(c10::DeviceIndex of) const override {
    streams().host_waits_for_device(of < 0 ? current_device() : of);
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    device_allocator().recordStream(data, stream);
  }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex,
              c10::EventFlag) const override {
    if (*event == nullptr) *event = std::make_unique<Event>().release();
    streams().record(*as_event(*event), stream_number(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) streams().stream_waits(stream_number(stream), *as_event(event));
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || streams().is_over(*as_event(event));
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) streams().host_waits(*as_event(event));
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    const std::unique_ptr<Event> ended(as_event(event));
  }
  double elapsedTime(void* first, void* second, c10::DeviceIndex) const override {  // ms
    return static_cast<double>(as_event(second)->time_ns - as_event(first)->time_ns) / 1e6;
  }

 private:
  static int index(c10::Device of) { return of.has_index() ? of.index() : current_device(); }
  static Event* as_event(void* event) { return static_cast<Event*>(event); }
};

class SimHooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  void init() const override {}
  c10::DeviceIndex deviceCount() const override {
    return static_cast<c10::DeviceIndex>(device_count());
  }
  void setCurrentDevice(c10::DeviceIndex to) const override { exchange_device(to); }
  c10::DeviceIndex getCurrentDevice() const override {
    return static_cast<c10::DeviceIndex>(current_device());
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex to) const override {
    return static_cast<c10::DeviceIndex>(exchange_device(to));
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex to) const override {
    return exchangeDevice(to);
  }
  bool isPinnedPtr(const void* data) const override { return pinned_memory().owns(data); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_memory(); }
  at::Device getDeviceFromPtr(void* data) const override {
    for (int d = 0; d < device_count(); ++d) {
      if (memory(d).pages().in_front(data)) return device(d);
    }
    return c10::kCPU;
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex of) const override {
    return default_generator(of);
  }
  at::Generator getNewGenerator(c10::DeviceIndex of) const override { return new_generator(of); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    const c10::DeviceGuard guard(storage.device());
    c10::DataPtr data = device_allocator().allocate(bytes);
    const size_t kept = std::min(bytes, storage.nbytes());
    if (kept > 0) {
      streams().before_kernel(current_stream(storage.device().index()));
      device_allocator().copy_data(data.get(), storage.data(), kept);
    }
    storage.set_data_ptr_noswap(std::move(data));
    storage.set_nbytes(bytes);
  }
};

}  // namespace

void register_backend() {
  static const SimGuard guard;
  static SimHooks hooks;
  c10::impl::registerDeviceGuard(c10::DeviceType::PrivateUse1, &guard);
  at::RegisterPrivateUse1HooksInterface(&hooks);
  c10::register_privateuse1_backend("sim");
}

}  // namespace sim
