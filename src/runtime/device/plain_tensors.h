// Refuses tensors whose memory the runtime cannot see.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <string>

namespace reprise::runtime::internal::device {

// Says whether the tensor has memory of its own that operations read and write. A tensor of a class
// that is written in Python (DTensor, a quantized weight) is a shell around other tensors: its
// storage has a size, and its data is null.
bool is_plain(const at::Tensor& tensor);

// Throws InputError if the tensor is not plain. `what` begins the message: "input 0".
void require_plain(const at::Tensor& tensor, const std::string& what);

// Throws InputError if a parameter or buffer of the module is not plain. `where` ends the name of
// the tensor in the message: " of stage '2'".
void require_plain(const torch::nn::Module& module, const std::string& where);

}  // namespace reprise::runtime::internal::device
