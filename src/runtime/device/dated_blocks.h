// This is the age of memory: numbers for blocks, in the order in which they were handed out.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/StorageImpl.h>

#include <cstdint>
#include <optional>

#include "reprise/runtime/allocator.h"

namespace reprise::runtime::internal::device {

// While a DatedScope lives, blocks that this thread takes on the device have numbers. Those of the
// CPU always have. On devices without arenas (has_arenas()) there are none.
class DatedScope {
 public:
  explicit DatedScope(c10::Device device);

 private:
  std::optional<BlockSourceScope> source_;
};

// Returns the number of the last block that was handed out on the device.
uint64_t block_serial(c10::Device device);
// Returns the number of the block that the storage lies in, or 0 if it has none.
uint64_t block_serial(const c10::StorageImpl& storage);

}  // namespace reprise::runtime::internal::device
