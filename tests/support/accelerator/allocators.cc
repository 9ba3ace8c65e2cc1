#include "allocators.h"

#include <c10/util/Exception.h>

#include <cstring>
#include <utility>

#include "device_memory.h"
#include "streams.h"

namespace sim {
namespace {

thread_local int routed_to = -1;

void release_front(void* front) {
  if (front != nullptr) memory_with_front(front)->give_back(front);
}

void release_back(void* back) {
  if (back == nullptr) return;
  DeviceMemory* const owner = memory_with_back(back);
  owner->give_back(owner->pages().to_front(back));
}

class SimAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const int where = current_device();
    void* const front = bytes == 0 ? nullptr : memory(where).take(bytes);
    return {front, front, &release_front, device(where)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release_front; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(memory_with_front(to)->pages().to_back(to),
                memory_with_front(from)->pages().to_back(from), bytes);
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}  // nothing is cached
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    if (data.get() == nullptr) return;
    DeviceMemory* const owner = memory_with_front(data.get_context());
    if (owner != nullptr) owner->record_stream(data.get_context(), stream_number(stream));
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex index) override {
    return memory(index).stats();
  }
  void resetAccumulatedStats(c10::DeviceIndex index) override { memory(index).reset_accumulated(); }
  void resetPeakStats(c10::DeviceIndex index) override { memory(index).reset_peak(); }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex index) override {
    const size_t all = memory(index).capacity(), live = memory(index).live();
    return {live < all ? all - live : 0, all};
  }
};

class Router final : public c10::Allocator {
 public:
  explicit Router(c10::Allocator* behind) : behind_(behind) {}

  c10::DataPtr allocate(size_t bytes) override {
    if (routed_to < 0 || bytes == 0) return behind_->allocate(bytes);
    DeviceMemory& owner = memory(routed_to);
    void* const back = owner.pages().to_back(owner.take(bytes));
    return {back, back, &release_back, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }

  c10::Allocator* behind() const { return behind_; }

 private:
  static void release(void* data);
  c10::Allocator* const behind_;
};

Router* router = nullptr;  // lives until the process ends

void Router::release(void* data) {
  if (memory_with_back(data) != nullptr) {
    release_back(data);
  } else {
    router->behind()->raw_deallocate(data);
  }
}

}  // namespace

c10::DeviceAllocator& device_allocator() {
  static auto* const instance = new SimAllocator;
  return *instance;
}
void register_device_allocator() {
  c10::SetAllocator(c10::DeviceType::PrivateUse1, &device_allocator());
}

void route_cpu_allocator() {
  c10::Allocator* const now = c10::GetAllocator(c10::kCPU);
  if (now == router) return;
  router = new Router(now);
  c10::SetAllocator(c10::kCPU, router,
                    /*priority=*/255);  // as high as there is: the last one counts
}

RouteScope::RouteScope(int device) : before_(std::exchange(routed_to, device)) {}
RouteScope::~RouteScope() { routed_to = before_; }

c10::DataPtr adopt(c10::DataPtr& result) {
  DeviceMemory* const owner = memory_with_back(result.get());
  if (owner == nullptr || result.get_deleter() != &release_back) return {};
  void* const front = owner->pages().to_front(result.release_context());
  for (int d = 0; d < device_count(); ++d) {
    if (&memory(d) == owner) return {front, front, &release_front, device(d)};
  }
  return {};
}

}  // namespace sim
