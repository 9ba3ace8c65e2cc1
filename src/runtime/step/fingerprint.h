// Fingerprints of memory are hashes that show whether bytes have changed.
#pragma once

#include <c10/core/Storage.h>

#include <cstdint>
#include <vector>

#include "runtime/step/recording.h"

namespace reprise::runtime::internal::step {

// An Extent is the part of a storage from `begin` to `end`, in bytes from its start.
struct Extent {
  int64_t begin = 0, end = 0;

  bool operator==(const Extent&) const = default;
};

// Returns the extent from the first to the last element of a tensor.
Extent extent_of(const Geometry& geometry);

// A Fingerprint has a hash for each piece of a storage. To look at a part of the storage again, only
// the pieces are hashed in which this part lies. Different bytes have the same hash in one of 2^64
// cases. Memory is read once, on the threads of LibTorch, or on the device that has it.
class Fingerprint {
 public:
  static constexpr int64_t kPiece = 65536;  // bytes

  explicit Fingerprint(const c10::Storage& storage);
  // Hashes the pieces in which the extent lies again, and keeps the new hashes. Returns whether one
  // is another one than before. The storage has the size that it had.
  bool renew(const c10::Storage& storage, const Extent& extent);

 private:
  // `data` is where the storage begins, and pieces [first, last) of it are there.
  bool renew_on_host(const char* data, int64_t first, int64_t last, int64_t bytes);

  std::vector<uint64_t> hashes_;  // by piece
};

}  // namespace reprise::runtime::internal::step
