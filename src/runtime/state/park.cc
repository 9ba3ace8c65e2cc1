#include "runtime/state/park.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <unordered_map>

namespace reprise::runtime::internal::state {
namespace {

at::Tensor bytes_of_host(const std::vector<char>& host) {
  return at::from_blob(const_cast<char*>(host.data()), {static_cast<int64_t>(host.size())},
                       at::TensorOptions(at::kChar));
}

}  // namespace

Parked::Parked(const Tensors& tensors) {
  at::NoGradGuard no_grad;
  std::unordered_map<void*, size_t> known;
  for (const at::Tensor& tensor : tensors) {
    ParkedTensor geometry;
    if (tensor.defined()) {
      const c10::Storage& storage = tensor.storage();
      auto [entry, fresh] = known.emplace(storage.unsafeGetStorageImpl(), storages_.size());
      if (fresh) {
        const auto size = static_cast<int64_t>(storage.nbytes());
        at::Tensor raw = at::empty({0}, tensor.options().dtype(at::kChar).requires_grad(false));
        raw.set_(storage, 0, {size}, {1});
        storages_.emplace_back(storage.nbytes());
        bytes_of_host(storages_.back()).copy_(raw);
      }
      geometry = {true,
                  entry->second,
                  tensor.storage_offset(),
                  tensor.sizes().vec(),
                  tensor.strides().vec(),
                  tensor.options().requires_grad(false)};
    }
    tensors_.push_back(std::move(geometry));
  }
}

Tensors Parked::restore() const {
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> raw(storages_.size());
  Tensors result;
  for (const ParkedTensor& geometry : tensors_) {
    if (!geometry.defined) {
      result.emplace_back();
      continue;
    }
    const std::vector<char>& host = storages_[geometry.storage];
    at::Tensor& bytes = raw[geometry.storage];
    if (!bytes.defined()) {
      bytes = at::empty({static_cast<int64_t>(host.size())}, geometry.options.dtype(at::kChar));
      bytes.copy_(bytes_of_host(host));
    }
    at::Tensor tensor = at::empty({0}, geometry.options);
    tensor.set_(bytes.storage(), geometry.offset, geometry.sizes, geometry.strides);
    result.push_back(std::move(tensor));
  }
  return result;
}

}  // namespace reprise::runtime::internal::state
