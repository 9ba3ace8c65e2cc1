// Tries whether a compiled region leaves the bits of its calls one by one.
#pragma once

#include <string>
#include <vector>

#include "runtime/rewrite/regions/region_kernel.h"

namespace reprise::runtime::internal::rewrite {

// Runs the calls of the region and its kernel on the same operands, of the sizes and layouts of the
// step, and compares all bytes of all outputs. Operands are random numbers of several sizes, and
// then also zeros of both signs, subnormal and infinite numbers and NaN. Operands of 16 bits go
// through the 65,536 patterns in at most 16 rounds, so those of 4,096 elements or more see all of
// them. The kernel writes to memory of its own, and as `over` says. Returns why it is refused; empty
// if all bytes are equal. A NaN counts as equal to every other NaN.
std::string trial_of(const RegionText& region, const RegionKernel& kernel,
                     const std::vector<int64_t>& over, const step::Recording& recording);

}  // namespace reprise::runtime::internal::rewrite
