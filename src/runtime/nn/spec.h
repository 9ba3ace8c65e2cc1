// This file has the contents of a TiledFunction, and the call of its function on a tile.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <mutex>
#include <set>
#include <vector>

#include "reprise/runtime/nn/forward_ad.h"

namespace reprise::runtime::internal::nn {

enum class Keep { kDerivative, kOperands };

// The types of the operands and the state of autocast, with which a function was tried out.
using Signature = std::vector<int64_t>;

struct Spec {
  runtime::nn::Elementwise function;
  Keep keep = Keep::kDerivative;
  runtime::nn::DerivativeStorage storage = runtime::nn::DerivativeStorage::kFull;
  int64_t tile = 0;

  mutable std::mutex mutex = {};
  mutable std::set<Signature> tried = {};  // `mutex` guards it
};

// Calls the function. Throws InputError if the result has not the shape that the operands have after
// broadcasting, or not the type `expected` (if it is defined).
at::Tensor call(const Spec& spec, const Tensors& operands, at::IntArrayRef shape,
                std::optional<at::ScalarType> expected);

// A Differentiated is a function that was called with operands whose gradients are asked for.
struct Differentiated {
  at::Tensor result;
  Tensors leaves;  // one for each operand; those of `wanted` require a gradient
};
Differentiated call_with_leaves(const Spec& spec, const Tensors& operands,
                                const std::vector<bool>& wanted, at::IntArrayRef shape,
                                std::optional<at::ScalarType> expected);

// Returns the gradients by the wanted leaves. One is undefined if the result does not depend on it.
Tensors gradients(const Differentiated& called, const std::vector<bool>& wanted,
                  const at::Tensor& by_result);

}  // namespace reprise::runtime::internal::nn
