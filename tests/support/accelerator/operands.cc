#include "operands.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "allocators.h"
#include "device_memory.h"
#include "generator.h"
#include "pinned_memory.h"

namespace sim {
namespace {

std::atomic<uint64_t> adopted{0}, copied{0};

// Returns the same elements in another storage.
at::Tensor same_elements(c10::Storage storage, c10::DispatchKeySet keys, const at::Tensor& like) {
  // Not of the kind VIEW, which takes the keys of autograd from its caller.
  at::Tensor made =
      at::detail::make_tensor<c10::TensorImpl>(std::move(storage), keys, like.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(),
                                                    like.storage_offset());
  if (like.is_conj()) made._set_conj(true);
  if (like.is_neg()) made._set_neg(true);
  return made;
}

char* first_element(const at::Tensor& tensor) {
  return static_cast<char*>(const_cast<void*>(tensor.storage().data())) +
         static_cast<size_t>(tensor.storage_offset()) * tensor.itemsize();
}

}  // namespace

char* kernel_address(const at::Tensor& tensor) {
  char* const data = first_element(tensor);
  if (on_device(tensor)) return memory(tensor.device().index()).pages().to_back(data);
  return pinned_memory().owns(data) ? pinned_memory().back(data) : data;
}

void add_accesses(const at::Tensor& tensor, bool writes, std::vector<Access>& accesses) {
  if (!tensor.defined() || !tensor.has_storage() || tensor.numel() == 0) return;
  const char* const begin = first_element(tensor);
  if (tensor.is_non_overlapping_and_dense()) {
    accesses.push_back({begin, begin + tensor.nbytes(), writes});
    return;
  }
  // From the densest dimension outwards: a dimension whose stride is what is covered so far makes the
  // pieces longer, any other one makes more of them.
  std::vector<std::pair<int64_t, int64_t>> dims;  // stride and size
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.size(d) > 1 && tensor.stride(d) != 0)
      dims.emplace_back(tensor.stride(d), tensor.size(d));
  }
  std::sort(dims.begin(), dims.end());
  int64_t piece = 1;
  std::vector<int64_t> offsets = {0};
  for (const auto& [stride, size] : dims) {
    if (offsets.size() == 1 && stride <= piece) {
      piece += stride * (size - 1);
      continue;
    }
    if (offsets.size() * static_cast<size_t>(size) > kMostRanges) return;
    const std::vector<int64_t> inner = offsets;
    for (int64_t i = 1; i < size; ++i) {
      for (const int64_t offset : inner) offsets.push_back(offset + i * stride);
    }
  }
  const auto bytes = static_cast<int64_t>(tensor.itemsize());
  for (const int64_t offset : offsets) {
    accesses.push_back({begin + offset * bytes, begin + (offset + piece) * bytes, writes});
  }
}

at::Tensor Operands::to_host(const at::Tensor& tensor) {
  if (!on_device(tensor)) return tensor;
  TORCH_CHECK(!device_ || *device_ == tensor.device() || tensor.dim() == 0,
              "sim: a kernel has operands on ", *device_, " and on ", tensor.device(),
              "; copy them to one device first");
  if (!device_) device_ = tensor.device();
  const auto known = hosts_.find(tensor.unsafeGetTensorImpl());
  if (known != hosts_.end()) return known->second;
  at::Tensor host = same_elements(twin(tensor.storage()).host, kHostKeys, tensor);
  hosts_.emplace(tensor.unsafeGetTensorImpl(), host);
  devices_.emplace(host.unsafeGetTensorImpl(), tensor);
  return host;
}

c10::IValue Operands::to_host(const c10::IValue& value) {
  if (value.isTensor()) return to_host(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> all;
    for (const at::Tensor& each : value.toTensorVector()) all.push_back(to_host(each));
    return all;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> all;
    for (const std::optional<at::Tensor>& each : value.toOptionalTensorVector()) {
      all.push_back(each ? std::optional(to_host(*each)) : std::nullopt);
    }
    return all;
  }
  if (value.isDevice() && value.toDevice().type() == kDeviceType) {
    if (!device_) device_ = value.toDevice();
    return c10::Device(c10::kCPU);
  }
  if (value.isGenerator() && value.toGenerator().device().type() == kDeviceType) {
    return host_generator_of(value.toGenerator());
  }
  return value;
}

const Operands::Shared& Operands::twin(const c10::Storage& storage) {
  for (const Shared& known : storages_) {
    if (known.operand && known.device.unsafeGetStorageImpl() == storage.unsafeGetStorageImpl()) {
      return known;
    }
  }
  const void* const front = storage.data();
  void* const back =
      front == nullptr ? nullptr : memory(storage.device().index()).pages().to_back(front);
  c10::Storage host(c10::Storage::use_byte_size_t(), storage.nbytes(),
                    c10::DataPtr(back, c10::Device(c10::kCPU)), c10::GetAllocator(c10::kCPU),
                    /*resizable=*/true);
  storages_.push_back({storage, std::move(host), back, true});
  return storages_.back();
}

void Operands::update() {
  for (const Shared& shared : storages_) {
    if (!shared.operand || shared.host.data() == shared.host_data) continue;
    c10::StorageImpl* const device = shared.device.unsafeGetStorageImpl();
    device->set_data_ptr_noswap(take_over(shared.host));
    device->set_nbytes(shared.host.nbytes());
  }
  for (const auto& [host, tensor] : devices_) {
    if (host->sizes() == tensor.sizes() && host->strides() == tensor.strides() &&
        host->storage_offset() == tensor.storage_offset()) {
      continue;
    }
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(host->sizes(), host->strides(),
                                                        host->storage_offset());
  }
}

at::Tensor Operands::to_device(const at::Tensor& result) {
  if (!result.defined() || !device_) return result;
  const auto operand = devices_.find(result.unsafeGetTensorImpl());
  if (operand != devices_.end()) return operand->second;
  TORCH_CHECK(result.has_storage() && result.layout() == c10::kStrided,
              "sim: a kernel returns a tensor of layout ", result.layout(),
              ", which this device does not have");
  for (const Shared& shared : storages_) {  // a view of an operand, or of an earlier result
    if (shared.host.is_alias_of(result.storage())) {
      return same_elements(shared.device, kDeviceKeys, result);
    }
  }
  const c10::Storage host = result.storage();
  const size_t bytes = host.nbytes();
  const void* const data = host.data();
  c10::Storage device(c10::Storage::use_byte_size_t(), bytes, take_over(host), &device_allocator(),
                      /*resizable=*/true);
  storages_.push_back({device, host, data, false});
  return same_elements(std::move(device), kDeviceKeys, result);
}

c10::IValue Operands::to_device(const c10::IValue& value) {
  if (value.isTensor()) return to_device(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> all;
    for (const at::Tensor& each : value.toTensorVector()) all.push_back(to_device(each));
    return all;
  }
  return value;
}

// Returns the memory that a kernel left in a storage of the host as memory of the device.
c10::DataPtr Operands::take_over(const c10::Storage& host) {
  if (host.nbytes() == 0) return {nullptr, *device_};
  void* const data = host.mutable_data();
  c10::DataPtr whole = host.set_data_ptr(c10::DataPtr(data, c10::Device(c10::kCPU)));
  if (c10::DataPtr own = adopt(whole)) {
    ++adopted;
    return own;
  }
  ++copied;
  const c10::DeviceGuard guard(*device_);
  c10::DataPtr copy = device_allocator().allocate(host.nbytes());
  std::memcpy(memory(device_->index()).pages().to_back(copy.get()), data, host.nbytes());
  host.set_data_ptr_noswap(std::move(whole));
  return copy;
}

uint64_t adopted_results() { return adopted; }
uint64_t copied_results() { return copied; }

}  // namespace sim
