// Operations in blocks; backwards of normalisations some channels at a time, with the result in place of an operand.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <utility>

#include "runtime/rewrite/alternative.h"

namespace reprise::runtime::internal::rewrite {

// Of an operand of so many bytes: small enough that three of them stay in the cache, at least eight.
int64_t blocks_in_cache(int64_t bytes);

// The k-th of so many parts of something: where it begins, and how long it is.
std::pair<int64_t, int64_t> samples_of(int64_t k, int64_t parts, int64_t samples);

// Elements [first, first + count) of an operand's dimension; undefined if the operand is.
at::Tensor part_of(const c10::IValue& operand, int64_t dimension, int64_t first, int64_t count);

// For an operator whose first two operands are the gradient and the input, and whose first result is the
// gradient of the input: a way called `kind`/operand for either of them that ends there, if both and the
// result look the same and fill their memory. kernel(k) leaves the result in operand k.
void add_variants_over_operands(Rewriter& rewriter, int32_t call, const char* kind,
                            const std::function<step::Kernel(size_t over)>& kernel);

}  // namespace reprise::runtime::internal::rewrite
