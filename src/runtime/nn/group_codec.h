// The codec by operations of PyTorch, for other devices, and for steps that are captured.
#pragma once

#include "reprise/runtime/nn/group_codec.h"

namespace reprise::runtime::internal::nn {

// Fills in codes, least and step. `x` is dense.
void encode_by_operations(const at::Tensor& x, runtime::nn::Encoded& encoded);
at::Tensor decode_by_operations(const runtime::nn::Encoded& encoded);

}  // namespace reprise::runtime::internal::nn
