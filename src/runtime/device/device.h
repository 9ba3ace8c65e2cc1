// These are functions that differ between devices, apart from those that count memory.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

namespace reprise::runtime::internal::device {

// Returns the device with its index: that of the current device of its kind where none is given.
c10::Device with_index(c10::Device device);

// Waits until all work queued on the device is done. On the CPU there is nothing to wait for.
void synchronize(c10::Device device);

}  // namespace reprise::runtime::internal::device
