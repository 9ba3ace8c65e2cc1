// These are the allocators that LibTorch sees.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>

namespace sim {

// Gives memory of the current device, for its current stream.
c10::DeviceAllocator& device_allocator();
void register_device_allocator();

// Stands in front of the CPU's allocator and passes requests on, except inside a RouteScope.
void route_cpu_allocator();

// While it lives, what this thread takes from the CPU's allocator is memory of the device, at back
// addresses. So kernels of the CPU put results and scratch where they belong, and they are counted.
class RouteScope {
 public:
  explicit RouteScope(int device);
  ~RouteScope();
  RouteScope(const RouteScope&) = delete;
  RouteScope& operator=(const RouteScope&) = delete;

 private:
  int before_;
};

// Takes the block of a result that a kernel made inside a RouteScope, as the device's own.
// Returns null if the result lies elsewhere; it then stays the caller's.
c10::DataPtr adopt(c10::DataPtr& result);

}  // namespace sim
