// Makes tensors of a device, and shares and resizes their storages.
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_fused_sdp_choice_ops.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <optional>
#include <utility>

#include "allocators.h"
#include "kernels.h"
#include "operands.h"

namespace sim {
namespace {

at::Tensor empty(c10::IntArrayRef sizes, std::optional<c10::ScalarType> type,
                 std::optional<c10::Layout>, std::optional<c10::Device> where, std::optional<bool>,
                 std::optional<c10::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(where);
  return at::detail::empty_generic(sizes, &device_allocator(), kDeviceKeys,
                                   c10::dtype_or_default(type), format);
}

at::Tensor empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides,
                         std::optional<c10::ScalarType> type, std::optional<c10::Layout>,
                         std::optional<c10::Device> where, std::optional<bool>) {
  const c10::OptionalDeviceGuard guard(where);
  return at::detail::empty_strided_generic(sizes, strides, &device_allocator(), kDeviceKeys,
                                           c10::dtype_or_default(type));
}

at::Tensor& set_part(at::Tensor& self, at::Storage source, int64_t offset, c10::IntArrayRef sizes,
                     c10::IntArrayRef strides) {
  const std::vector<int64_t> contiguous = c10::TensorType::contiguousStridesOf(sizes);
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(source));
  self.unsafeGetTensorImpl()->set_sizes_and_strides(
      sizes, strides.empty() ? c10::IntArrayRef(contiguous) : strides, offset);
  return self;
}
at::Tensor& set_storage(at::Tensor& self, at::Storage source) {
  const auto elements = static_cast<int64_t>(source.nbytes() / self.itemsize());
  return set_part(self, std::move(source), 0, {elements}, {1});
}
at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  return set_part(self, source.storage(), source.storage_offset(), source.sizes(),
                  source.strides());
}
at::Tensor& set_nothing(at::Tensor& self) {
  c10::Storage none(c10::Storage::use_byte_size_t(), 0, c10::DataPtr(nullptr, self.device()),
                    &device_allocator(), /*resizable=*/true);
  return set_part(self, std::move(none), 0, {0}, {1});
}

void record_stream(at::Tensor& self, at::Stream stream) {
  device_allocator().recordStream(self.storage().data_ptr(), stream);
}

// Without it Tensor::set_data(), and so torch::nn::Module::to(), refuses to go to the device.
bool has_compatible_type(const at::Tensor& self, const at::Tensor& from) {
  const auto plain = [](const at::Tensor& tensor) {
    return tensor.layout() == at::kStrided && (tensor.is_cpu() || on_device(tensor));
  };
  return plain(self) && plain(from);
}

// Returns host memory of the same shape, without the bytes.
at::Tensor like_on_host(const at::Tensor& tensor) {
  return at::detail::empty_strided_cpu(tensor.sizes(), tensor.strides(), tensor.scalar_type());
}

// Returns the CPU's choice between fused attention and its parts. It depends on shapes and types
// alone, so no byte is read, and the CPU's kernel is called directly: whoever watches operators
// sees none.
int64_t choose_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                         const std::optional<at::Tensor>& mask, double dropout, bool causal,
                         std::optional<double> scale, bool grouped) {
  const auto host_mask = mask ? std::optional(like_on_host(*mask)) : std::nullopt;
  return at::_ops::_fused_sdp_choice::redispatch(
      c10::DispatchKeySet(c10::DispatchKey::CPU), like_on_host(query), like_on_host(key),
      like_on_host(value), host_mask, dropout, causal, scale, grouped);
}

}  // namespace

void register_factories() {
  static torch::Library aten(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__,
                             __LINE__);
  aten.impl("empty.memory_format", &empty);
  aten.impl("empty_strided", &empty_strided);
  aten.impl("set_.source_Storage", &set_storage);
  aten.impl("set_.source_Storage_storage_offset", &set_part);
  aten.impl("set_.source_Tensor", &set_tensor);
  aten.impl("set_", &set_nothing);
  aten.impl("record_stream", &record_stream);
  aten.impl("_has_compatible_shallow_copy_type", &has_compatible_type);
}

}  // namespace sim

namespace at::native {
namespace {
constexpr auto sim_choice = &sim::choose_attention;
}
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, sim_choice)
}  // namespace at::native
