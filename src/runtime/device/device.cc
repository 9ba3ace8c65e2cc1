#include "runtime/device/device.h"

#include <ATen/DeviceAccelerator.h>

namespace reprise::runtime::internal::device {

void synchronize(c10::Device device) {
  if (!device.is_cpu()) at::accelerator::synchronizeDevice(device.index());
}

}  // namespace reprise::runtime::internal::device
