#include "runtime/step/storage_bytes.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>

#include <cstring>

#include "runtime/step/tensors.h"

namespace reprise::runtime::internal::step {
namespace {

at::Tensor raw_tensor(const c10::Storage& storage) {
  return tensor_on(
      storage,
      {.sizes = {static_cast<int64_t>(storage.nbytes())}, .strides = {1}, .dtype = at::kChar});
}

at::Tensor host_tensor(const HostBytes& bytes) {
  return at::from_blob(const_cast<char*>(bytes.data()), {static_cast<int64_t>(bytes.size())},
                       at::TensorOptions(at::kChar));
}

// Mixes words in four independent lanes, so that a core reads memory as fast as it can.
uint64_t hash_bytes(const char* data, size_t size) {
  constexpr uint64_t kMix = 0x9E3779B97F4A7C15u;
  uint64_t lanes[4] = {size, kMix, ~size, ~kMix};
  size_t at = 0;
  for (; at + 32 <= size; at += 32) {
    for (int lane = 0; lane < 4; ++lane) {
      uint64_t word;
      std::memcpy(&word, data + at + 8 * lane, 8);
      lanes[lane] = (lanes[lane] ^ word) * kMix;
      lanes[lane] ^= lanes[lane] >> 29;
    }
  }
  for (; at < size; ++at) {
    lanes[at % 4] = (lanes[at % 4] ^ static_cast<unsigned char>(data[at])) * kMix;
    lanes[at % 4] ^= lanes[at % 4] >> 29;
  }
  uint64_t hash = 0;
  for (const uint64_t lane : lanes) {
    hash = (hash ^ lane) * kMix;
    hash ^= hash >> 32;
  }
  return hash;
}

}  // namespace

HostBytes copy_to_host(const c10::Storage& storage) {
  HostBytes bytes(storage.nbytes());
  if (bytes.empty()) return bytes;
  if (storage.device().is_cpu()) {
    std::memcpy(bytes.data(), storage.data(), bytes.size());
  } else {
    at::NoGradGuard no_grad;
    host_tensor(bytes).copy_(raw_tensor(storage));
  }
  return bytes;
}

void copy_from_host(const HostBytes& bytes, const c10::Storage& storage) {
  if (bytes.empty()) return;
  if (storage.device().is_cpu()) {
    std::memcpy(storage.mutable_data(), bytes.data(), bytes.size());
  } else {
    at::NoGradGuard no_grad;
    raw_tensor(storage).copy_(host_tensor(bytes));
  }
}

uint64_t hash_of(const c10::Storage& storage) {
  if (storage.device().is_cpu()) {
    return hash_bytes(static_cast<const char*>(storage.data()), storage.nbytes());
  }
  const HostBytes bytes = copy_to_host(storage);
  return hash_bytes(bytes.data(), bytes.size());
}

}  // namespace reprise::runtime::internal::step
