#include "runtime/step/storage_bytes.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>

#include <cstring>

#include "runtime/device/parallel.h"
#include "runtime/step/tensors.h"

namespace reprise::runtime::internal::step {
namespace {

at::Tensor raw_tensor(const c10::Storage& storage, int64_t begin, int64_t count) {
  return tensor_on(storage,
                   {.sizes = {count}, .strides = {1}, .offset = begin, .dtype = at::kChar});
}
at::Tensor raw_tensor(const c10::Storage& storage) {
  return raw_tensor(storage, 0, static_cast<int64_t>(storage.nbytes()));
}

at::Tensor host_tensor(const HostBytes& bytes) {
  return at::from_blob(const_cast<char*>(bytes.data()), {static_cast<int64_t>(bytes.size())},
                       at::TensorOptions(at::kChar));
}

// Copies memory on the threads of LibTorch.
void copy_bytes(char* to, const char* from, size_t bytes) {
  constexpr size_t kGrain = size_t{1} << 20;  // bytes for each thread
  if (bytes < 2 * kGrain) {
    std::memcpy(to, from, bytes);
    return;
  }
  device::parallel_ranges(static_cast<int64_t>(bytes), kGrain, [&](int64_t begin, int64_t end) {
    std::memcpy(to + begin, from + begin, static_cast<size_t>(end - begin));
  });
}

}  // namespace

HostBytes copy_to_host(const c10::Storage& storage) {
  return copy_to_host(storage, 0, static_cast<int64_t>(storage.nbytes()));
}

HostBytes copy_to_host(const c10::Storage& storage, int64_t begin, int64_t count) {
  HostBytes bytes(static_cast<size_t>(count));
  if (bytes.empty()) return bytes;
  if (storage.device().is_cpu()) {
    copy_bytes(bytes.data(), static_cast<const char*>(storage.data()) + begin, bytes.size());
  } else {
    at::NoGradGuard no_grad;
    host_tensor(bytes).copy_(raw_tensor(storage, begin, count));
  }
  return bytes;
}

void copy_from_host(const HostBytes& bytes, const c10::Storage& storage) {
  if (bytes.empty()) return;
  if (storage.device().is_cpu()) {
    copy_bytes(static_cast<char*>(storage.mutable_data()), bytes.data(), bytes.size());
  } else {
    at::NoGradGuard no_grad;
    raw_tensor(storage).copy_(host_tensor(bytes));
  }
}

}  // namespace reprise::runtime::internal::step
