// These are the calls of a recording that a fused region may have.
#pragma once

#include <cstdint>
#include <optional>

#include "runtime/rewrite/tiles/element_call.h"

namespace reprise::runtime::internal::rewrite {

// Returns the call if it is element-wise, or if it only moves elements (cat), and a description of
// a region can name its operator and its arguments. Its arguments are those of the recording, in
// any layout. Its iteration space is not set.
std::optional<ElementCall> region_call(const step::Recording& recording, int32_t call);

// Returns whether the argument is a number of the host. A followed step may have another number at
// each call, so the number is an operand of the region.
bool is_number(const step::Argument& argument, const step::Recording& recording);

}  // namespace reprise::runtime::internal::rewrite
