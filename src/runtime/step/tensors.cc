#include "runtime/step/tensors.h"

#include <c10/core/TensorImpl.h>

namespace reprise::runtime::internal::step {

at::Tensor tensor_on(c10::Storage storage, const Geometry& geometry) {
  c10::DispatchKeySet keys(
      c10::computeDispatchKey(geometry.dtype, c10::kStrided, storage.device()));
  if (geometry.conjugate) keys = keys.add(c10::DispatchKey::Conjugate);
  if (geometry.negative) keys = keys.add(c10::DispatchKey::Negative);
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), keys, c10::scalarTypeToTypeMeta(geometry.dtype));
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(geometry.sizes, geometry.strides, geometry.offset);
  if (geometry.wrapped_number) impl->set_wrapped_number(true);
  return tensor;
}

}  // namespace reprise::runtime::internal::step
