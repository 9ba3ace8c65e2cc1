// These are storages whose memory goes away and comes back. Whoever holds a tensor of such a
// storage holds the same storage all the time, and an access to it throws while the memory is away.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>

#include <string>
#include <utility>

#include "runtime/device/compat.h"

namespace reprise::runtime::internal::transfer {

// `why` is the message of the exception that meets an access.
inline void drop_memory(c10::StorageImpl& storage, const std::string& why) {
  storage.set_data_ptr_noswap({nullptr, storage.device()});
  storage.release_data_and_set_meta_custom_data_ptr_error_msg_(why);
}

// Says whether the memory of the tensor is away.
inline bool lacks_memory(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage() || tensor.storage().nbytes() == 0) return false;
  return tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get() == nullptr;
}

inline void give_memory(c10::StorageImpl& storage, c10::DataPtr memory) {
  device::give_address_again(storage);
  storage.set_data_ptr_noswap(std::move(memory));
}

}  // namespace reprise::runtime::internal::transfer
