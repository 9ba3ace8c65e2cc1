// These are the codecs by operations of PyTorch, for other devices, and for steps that are
// captured.
#pragma once

#include "reprise/runtime/nn/group_codec.h"

namespace reprise::runtime::internal::nn {

// Fills in codes and the numbers of the groups. `x` is dense.
void encode_by_operations(const at::Tensor& x, runtime::nn::Encoded& encoded);
at::Tensor decode_by_operations(const runtime::nn::Encoded& encoded);

// These functions do the same for OliVe (olive_codec.cc).
void encode_olive_by_operations(const at::Tensor& x, runtime::nn::Encoded& encoded);
at::Tensor decode_olive_by_operations(const runtime::nn::Encoded& encoded);

// Returns the elements of a dense tensor in memory order.
at::Tensor flat(const at::Tensor& x);

}  // namespace reprise::runtime::internal::nn
