// Functions that differ between devices, apart from those that count memory.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

namespace reprise::runtime::internal::device {

// Waits until all work queued on the device is done. On the CPU there is nothing to wait for.
void synchronize(c10::Device device);

// The requests for memory of the device that failed so far in this process. On the CPU these are those
// that the counting allocator refused; elsewhere the device's allocator counts them, and somebody who
// resets its statistics resets this number.
uint64_t failed_requests(c10::Device device);

}  // namespace reprise::runtime::internal::device
