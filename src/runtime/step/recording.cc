#include "runtime/step/recording.h"

#include <ATen/core/TensorBase.h>

namespace reprise::runtime::internal::step {

int64_t offset_bytes(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.storage_offset() * static_cast<int64_t>(tensor.element_size())
                          : 0;
}

Geometry geometry_of(const at::Tensor& tensor) {
  return {.sizes = tensor.sizes().vec(),
          .strides = tensor.strides().vec(),
          .offset = tensor.storage_offset(),
          .dtype = tensor.scalar_type(),
          .wrapped_number = tensor.unsafeGetTensorImpl()->is_wrapped_number(),
          .conjugate = tensor.is_conj(),
          .negative = tensor.is_neg()};
}

int64_t extent_bytes(const Geometry& geometry) {
  int64_t last = geometry.offset;
  for (size_t d = 0; d < geometry.sizes.size(); ++d) {
    if (geometry.sizes[d] == 0) return 0;
    last += (geometry.sizes[d] - 1) * geometry.strides[d];
  }
  return (last + 1) * static_cast<int64_t>(c10::elementSize(geometry.dtype));
}

bool is_host_number(const External& external) {
  return external.is_constant && external.tensor.device().is_cpu() && external.tensor.dim() == 0;
}

std::string Call::name() const {
  const c10::OperatorName& full = op.operator_name();
  const size_t colons = full.name.find("::");
  std::string text =
      full.name.compare(0, 6, "aten::") == 0 ? full.name.substr(colons + 2) : full.name;
  if (!full.overload_name.empty()) text += "." + full.overload_name;
  return text;
}

}  // namespace reprise::runtime::internal::step
