#include "runtime/device/device.h"

#include <ATen/DeviceAccelerator.h>
#include <c10/core/CachingDeviceAllocator.h>

#include "reprise/runtime/allocator.h"

namespace reprise::runtime::internal::device {

void synchronize(c10::Device device) {
  if (!device.is_cpu()) at::accelerator::synchronizeDevice(device.index());
}

uint64_t failed_requests(c10::Device device) {
  if (device.is_cpu()) return cpu_failures();
  const auto stats = c10::getDeviceAllocator(device.type())->getDeviceStats(device.index());
  return static_cast<uint64_t>(stats.num_ooms);
}

}  // namespace reprise::runtime::internal::device
