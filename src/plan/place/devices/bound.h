// This is a time that no plan on several devices can beat, whatever it copies, runs again, or has
// room for.
#pragma once

#include "plan/place/devices/layout.h"

namespace reprise::internal::devices {

// Returns the larger of two bounds.
//
// Paths: a run on a device begins when what it reads has been made somewhere, by a run that is
// bounded in the same way, and has come to the device over the fastest channels. Results come to
// the first device in the end.
//
// Work: every op that all plans run takes its time on some device. For any weights of the devices
// that add up to one, no plan is faster than the sum of the least weighted times of these ops.
//
// The bounds hold for all valid plans with copies. They know no bytes: where memory is scarce, the
// best plan may take far longer. The cost is O(values of all variants * devices^2) for the paths,
// and O(variants) for each of some hundred weights.
Nanos lower_bound(const Ground& ground);

// Returns the first op that all plans run and that fits nowhere: each of its variants needs more
// than its device has. Returns -1 if there is none. Then no plan exists.
OpIndex impossible_op(const Ground& ground);

}  // namespace reprise::internal::devices
