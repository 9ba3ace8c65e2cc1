// This is the limit on the bytes of a device other than the CPU. The front before the device's
// allocator asks at each request. The CPU's allocator has a limit of its own, under its lock.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>

#include "reprise/model/errors.h"

namespace reprise::runtime::internal::device {

// Says whether requests for memory of the device can be limited: whether the runtime stands before
// its allocator. So it is for the CPU, and for devices with a heap (heap_of()).
bool has_limits(c10::Device device);

void set_device_limit(std::optional<int64_t> bytes, c10::Device device);
std::optional<int64_t> device_limit(c10::Device device);
// Returns how many requests were refused so far.
uint64_t refused_requests(c10::Device device);

// Returns the most bytes that were live at once at a request under a limit since the last call.
int64_t take_recent_device_peak(c10::Device device);

// Lets a request for so many counted bytes pass. Where it would make the live bytes of the heap
// (limited_bytes()) exceed the limit, the RoomMaker of this thread gives memory back first. Throws
// BudgetError, or what the Refusal throws in its place, if that does not suffice. The check and the
// request behind it are not one action: of two threads that ask at once, both may pass.
void admit(int64_t bytes, c10::Device device);

// Returns the error of a request that a limit refuses. `held` says what holds the memory, or is empty.
BudgetError refused_request(int64_t limit, int64_t live, int64_t bytes, const std::string& held);
// Throws the error, or what the Refusal in force throws in its place.
[[noreturn]] void throw_refused(const BudgetError& error);

}  // namespace reprise::runtime::internal::device
