// These are words for what a call was given: numbers, shapes and literals.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <string>

#include "runtime/step/recording.h"

namespace reprise::runtime::internal::lockstep {

// Says whether two arguments that are no tensors are the same for an operator, to the last bit.
// Objects whose content is not known count as the same.
bool same_constant(const c10::IValue& a, const c10::IValue& b);

// Returns a number, a list or a text as a program writes it, not longer than a line.
std::string words_of(const c10::IValue& value);

// Returns the numbers in host memory, such as "0.5" or "[1, 2, 3, ...]".
std::string numbers_in(const at::Tensor& tensor);

// Returns a text such as "Float[8, 3]".
std::string shape_of(const step::Geometry& geometry);

}  // namespace reprise::runtime::internal::lockstep
