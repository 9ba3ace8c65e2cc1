// Finds which operations of a captured step may run on other devices, with what they cost there.
#pragma once

#include <c10/core/Device.h>

#include <vector>

#include "reprise/model/machine.h"
#include "reprise/runtime/capture.h"
#include "runtime/graph/costs.h"
#include "runtime/rewrite/alternative.h"

namespace reprise::runtime::internal::graph {

// Throws InputError if a step whose inputs lie on `first` cannot run on
// CaptureOptions::other_devices, too: for a device that is there twice or does not exist, for two
// types of devices beside the CPU, and for options that such a step does not go together with.
void require_other_devices(const CaptureOptions& options, c10::Device first);

// Walks through the step on these inputs, as plain training does, and runs each call that may run
// elsewhere on each other device, too, on copies of its operands. A call whose results have the
// same bits there gets a variant, with a work behind all others and its cost in `costs`. With
// AlternativeOptions::allow of at least kRounding, results that are close are enough.
//
// These calls stay on the first device: calls that draw random numbers, write or read what the step
// writes outside itself, read numbers on the host, make sizes of values, or touch values on a third
// device.
//
// Parameters, buffers and the random state are left as they were. Sets RewrittenStep::devices.
void add_other_devices(rewrite::RewrittenStep& step, WorkCosts& costs, const Tensors& inputs,
                       const CaptureOptions& options);

// Says how close the results of a work on another device are to those on the first: kBitwise,
// kRounding, or kApproximate if they are not even close. Both have the same type and lie on any
// devices.
Exactness agreement(const at::Tensor& first, const at::Tensor& other);

}  // namespace reprise::runtime::internal::graph
