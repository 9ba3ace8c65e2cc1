// Compares arguments of operators that are no tensors.
#pragma once

#include <ATen/core/ivalue.h>

namespace reprise::runtime::internal::step {

// Says whether the content of an argument is compared by same_constant(): it is a number, a text, a
// device, nothing, or a list of such.
bool is_comparable(const c10::IValue& value);

// Says whether two arguments that are no tensors are the same for an operator, to the last bit.
// Objects whose content is not known count as the same.
bool same_constant(const c10::IValue& a, const c10::IValue& b);

}  // namespace reprise::runtime::internal::step
