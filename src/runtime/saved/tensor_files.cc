#include "runtime/saved/tensor_files.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <span>

#include "io/crc32c.h"
#include "reprise/model/errors.h"

namespace reprise::runtime::internal::saved {
namespace {

struct TypeName {
  at::ScalarType type;
  const char* name;
};
constexpr std::array<TypeName, 16> kTypeNames = {{{at::kDouble, "F64"},
                                                  {at::kFloat, "F32"},
                                                  {at::kHalf, "F16"},
                                                  {at::kBFloat16, "BF16"},
                                                  {at::kLong, "I64"},
                                                  {at::kInt, "I32"},
                                                  {at::kShort, "I16"},
                                                  {at::kChar, "I8"},
                                                  {at::kUInt64, "U64"},
                                                  {at::kUInt32, "U32"},
                                                  {at::kUInt16, "U16"},
                                                  {at::kByte, "U8"},
                                                  {at::kBool, "BOOL"},
                                                  {at::kComplexFloat, "C64"},
                                                  {at::kFloat8_e4m3fn, "F8_E4M3"},
                                                  {at::kFloat8_e5m2, "F8_E5M2"}}};

// Returns the elements of a tensor, one after the other, in memory that no budget counts.
std::vector<std::byte> copy_of(const at::Tensor& tensor) {
  std::vector<std::byte> bytes(static_cast<size_t>(tensor.nbytes()));
  if (bytes.empty()) return bytes;
  const at::NoGradGuard no_grad;
  at::Tensor view = at::from_blob(bytes.data(), tensor.sizes(),
                                  tensor.options().device(at::kCPU).requires_grad(false));
  view.copy_(tensor.detach());
  return bytes;
}

bool lies_ready(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

std::span<std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), static_cast<size_t>(tensor.nbytes())};
}

}  // namespace

std::string file_type(const at::Tensor& tensor, const std::string& name) {
  if (tensor.layout() != at::kStrided || tensor.is_quantized()) {
    throw InputError(fmt::format(
        "tensor \"{}\" cannot be saved: it is sparse or quantized, and files have plain elements",
        name));
  }
  for (const TypeName& each : kTypeNames) {
    if (each.type == tensor.scalar_type()) return each.name;
  }
  throw InputError(fmt::format("tensor \"{}\" cannot be saved: files have no elements of type {}",
                               name, c10::toString(tensor.scalar_type())));
}

at::ScalarType scalar_type(const std::string& file_type) {
  for (const TypeName& each : kTypeNames) {
    if (each.name == file_type) return each.type;
  }
  throw InputError("this version of PyTorch has no elements of type " + file_type);
}

uint32_t checksum(const at::Tensor& tensor) {
  if (lies_ready(tensor)) return io::crc32c(bytes_of(tensor));
  return io::crc32c(copy_of(tensor));
}

void write_tensors(const std::filesystem::path& path,
                   const std::map<std::string, std::string>& metadata,
                   const NamedTensors& tensors) {
  std::vector<std::vector<std::byte>> copies(tensors.size());
  std::vector<TensorBytes> rows;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto& [name, tensor] = tensors[i];
    TensorBytes row{
        .name = name, .type = file_type(tensor, name), .shape = tensor.sizes().vec(), .data = {}};
    if (lies_ready(tensor)) {
      row.data = bytes_of(tensor);
    } else {
      copies[i] = copy_of(tensor);
      row.data = copies[i];
    }
    rows.push_back(std::move(row));
  }
  reprise::write_tensors(path, metadata, rows);
}

void read_into(const TensorFile& file, const TensorEntry& entry, const at::Tensor& to) {
  if (entry.bytes == Bytes(0)) return;
  if (lies_ready(to)) {
    file.read(entry, bytes_of(to));
    return;
  }
  std::vector<std::byte> bytes(static_cast<size_t>(entry.bytes.count()));
  file.read(entry, bytes);
  const at::NoGradGuard no_grad;
  to.detach().copy_(
      at::from_blob(bytes.data(), entry.shape, at::TensorOptions(scalar_type(entry.type))));
}

at::Tensor read_tensor(const TensorFile& file, const TensorEntry& entry) {
  at::Tensor made = at::empty(entry.shape, at::TensorOptions(scalar_type(entry.type)));
  read_into(file, entry, made);
  return made;
}

std::string difference(const TensorEntry& entry, const at::Tensor& tensor) {
  const std::string type = file_type(tensor, entry.name);
  if (tensor.sizes() == at::IntArrayRef(entry.shape) && type == entry.type) return {};
  return fmt::format("has shape [{}] and type {}, and [{}] and {} in the file",
                     fmt::join(tensor.sizes().vec(), ", "), type, fmt::join(entry.shape, ", "),
                     entry.type);
}

}  // namespace reprise::runtime::internal::saved
