// These are functions that differ between devices, apart from those that count memory.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

namespace reprise::runtime::internal::device {

// Waits until all work queued on the device is done. On the CPU there is nothing to wait for.
void synchronize(c10::Device device);

// Returns how many requests for memory of the device failed so far in this process. On the CPU
// these are the requests that the counting allocator refused. Elsewhere the device's allocator
// counts them, and whoever resets its statistics resets this number.
uint64_t failed_requests(c10::Device device);

}  // namespace reprise::runtime::internal::device
