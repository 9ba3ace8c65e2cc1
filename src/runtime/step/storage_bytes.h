// The bytes of a storage as host memory that the allocator does not count.
#pragma once

#include <c10/core/Storage.h>

#include <cstdint>
#include <vector>

namespace reprise::runtime::internal::step {

using HostBytes = std::vector<char>;

HostBytes copy_to_host(const c10::Storage& storage);
void copy_from_host(const HostBytes& bytes, const c10::Storage& storage);  // of equal size

// Equal for equal bytes; different for different ones, but for one in 2^64.
uint64_t hash_of(const c10::Storage& storage);

}  // namespace reprise::runtime::internal::step
