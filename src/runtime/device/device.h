// What differs between devices besides memory.
#pragma once

#include <c10/core/Device.h>

namespace reprise::runtime::internal::device {

// Waits until all work queued on the device is done; nothing to do on CPU.
void synchronize(c10::Device device);

}  // namespace reprise::runtime::internal::device
