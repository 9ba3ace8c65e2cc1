// Copies of a storage's bytes in host memory that the allocator does not count.
#pragma once

#include <c10/core/Storage.h>

#include <cstdint>
#include <vector>

namespace reprise::runtime::internal::step {

using HostBytes = std::vector<char>;

HostBytes copy_to_host(const c10::Storage& storage);
// Both have the same size.
void copy_from_host(const HostBytes& bytes, const c10::Storage& storage);

// Returns equal hashes for equal bytes. Different bytes have the same hash in one of 2^64 cases.
uint64_t hash_of(const c10::Storage& storage);

}  // namespace reprise::runtime::internal::step
