// These are words for what a call was given: numbers, shapes and literals.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <string>

#include "runtime/step/recording.h"

namespace reprise::runtime::internal::lockstep {

// Returns a number, a list or a text as a program writes it, not longer than a line.
std::string words_of(const c10::IValue& value);

// Returns the numbers in host memory, such as "0.5" or "[1, 2, 3, ...]".
std::string numbers_in(const at::Tensor& tensor);

// Returns a text such as "Float[8, 3]".
std::string shape_of(const step::Geometry& geometry);

}  // namespace reprise::runtime::internal::lockstep
