// These are files of tensors (reprise/io/tensors.h) with LibTorch's tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "reprise/io/tensors.h"

namespace reprise::runtime::internal::saved {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// Returns the type of elements in files, "F32" for example, and the other way round. The first one
// throws InputError, which names the tensor, if files have no such type.
std::string file_type(const at::Tensor& tensor, const std::string& name);
at::ScalarType scalar_type(const std::string& file_type);

// Returns the CRC-32C of a tensor's elements, of any device and any strides.
uint32_t checksum(const at::Tensor& tensor);

// Writes tensors of any device and of any strides.
void write_tensors(const std::filesystem::path& path,
                   const std::map<std::string, std::string>& metadata, const NamedTensors& tensors);

// Reads a tensor of the file into a tensor of the same shape and type, below autograd.
void read_into(const TensorFile& file, const TensorEntry& entry, const at::Tensor& to);
// Reads a tensor of the file into a new one on the CPU.
at::Tensor read_tensor(const TensorFile& file, const TensorEntry& entry);

// Says how a tensor differs in shape or type from its entry: "has shape [2, 3] and type F32, and
// [2] and F64 in the file". The text is empty if it does not differ.
std::string difference(const TensorEntry& entry, const at::Tensor& tensor);

}  // namespace reprise::runtime::internal::saved
