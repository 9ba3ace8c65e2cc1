#include "runtime/state/value_keeper.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cstring>

#include "reprise/model/errors.h"
#include "runtime/device/tensor_bytes.h"

namespace reprise::runtime::internal::state {

using device::counted_bytes;

namespace {

// Buffers are many and small. Without the dispatcher a copy takes a tenth of the time.
bool plain_memory(const at::Tensor& a, const at::Tensor& b) {
  return a.device().is_cpu() && b.device().is_cpu() && a.is_contiguous() && b.is_contiguous() &&
         a.scalar_type() == b.scalar_type() && a.nbytes() == b.nbytes();
}

}  // namespace

ValueKeeper::ValueKeeper(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) {
    tensors_.push_back(tensor);
    copies_.push_back(at::empty_like(tensor, tensor.options().requires_grad(false)));
  }
}

ValueKeeper::ValueKeeper(const std::vector<at::Tensor>& tensors, const at::Tensor& memory)
    : tensors_(tensors) {
  int64_t offset = 0;
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor bytes = memory.narrow(0, offset, static_cast<int64_t>(tensor.nbytes()));
    copies_.push_back(bytes.view(tensor.scalar_type()).view(tensor.sizes()));
    offset += counted_bytes(static_cast<int64_t>(tensor.nbytes()));
  }
}

int64_t ValueKeeper::bytes_of(const std::vector<at::Tensor>& tensors) {
  int64_t sum = 0;
  for (const at::Tensor& tensor : tensors)
    sum += counted_bytes(static_cast<int64_t>(tensor.nbytes()));
  return sum;
}

ValueKeeper ValueKeeper::part(const std::vector<at::Tensor>& tensors) const {
  ValueKeeper result;
  for (const at::Tensor& tensor : tensors) {
    const auto known = std::find_if(tensors_.begin(), tensors_.end(),
                                    [&](const at::Tensor& t) { return t.is_same(tensor); });
    if (known == tensors_.end()) throw InternalError("a part of a keeper that does not keep it");
    result.tensors_.push_back(tensor);
    result.copies_.push_back(copies_[known - tensors_.begin()]);
  }
  return result;
}

void ValueKeeper::save() {
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (plain_memory(copies_[i], tensors_[i])) {
      std::memcpy(copies_[i].mutable_data_ptr(), tensors_[i].const_data_ptr(),
                  tensors_[i].nbytes());
    } else {
      copies_[i].copy_(tensors_[i]);
    }
  }
}

void ValueKeeper::restore() const {
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    // variable_data() shares the memory but has a version counter of its own.
    const at::Tensor values = tensors_[i].variable_data();
    if (plain_memory(values, copies_[i])) {
      std::memcpy(values.mutable_data_ptr(), copies_[i].const_data_ptr(), values.nbytes());
    } else {
      values.copy_(copies_[i]);
    }
  }
}

bool ValueKeeper::changed() const {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (!bitwise_equal(tensors_[i], copies_[i])) return true;
  }
  return false;
}

bool bitwise_equal(const at::Tensor& a, const at::Tensor& b) {
  if (a.defined() != b.defined()) return false;
  if (!a.defined()) return true;
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  const at::Tensor x = a.detach().cpu().contiguous(), y = b.detach().cpu().contiguous();
  return x.nbytes() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

}  // namespace reprise::runtime::internal::state
