// Runs ops in blocks, and backwards of normalisations some channels at a time over one of their
// operands.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <utility>

#include "runtime/rewrite/alternative.h"

namespace reprise::runtime::internal::rewrite {

// Returns the number of blocks for an operand of `bytes` bytes. There are at least eight, and three
// of them stay in the cache.
int64_t blocks_in_cache(int64_t bytes);

// Returns the first sample and the length of the k-th of `parts` parts of `samples` samples.
std::pair<int64_t, int64_t> samples_of(int64_t k, int64_t parts, int64_t samples);

// Elements [first, first + count) of an operand's dimension. Undefined if the operand is undefined.
at::Tensor part_of(const c10::IValue& operand, int64_t dimension, int64_t first, int64_t count);

// Adds variants of an operator whose first two operands are the gradient and the input, and whose
// first result is the gradient of the input. Each of the two operands that no later call reads, and
// that is no result of the step, gives a variant `kind`/operand. For that, both operands and the
// result must have the same geometry and fill their storages. kernel(k) leaves the result in
// operand k.
void add_variants_over_operands(Rewriter& rewriter, int32_t call, const char* kind,
                                const std::function<step::Kernel(size_t over)>& kernel);

}  // namespace reprise::runtime::internal::rewrite
