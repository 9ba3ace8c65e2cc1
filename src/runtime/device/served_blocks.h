// These are the blocks of a device that sources have served in place of the device's own allocator.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "reprise/runtime/allocator.h"

namespace reprise::runtime::internal::device {

// An allocator that lets arenas serve asks a ServedBlocks first, for requests and for frees.
class ServedBlocks {
 public:
  // Returns a block of the source that serves this thread, or null if there is none, if the source
  // does not serve this request, and for requests of no bytes. Throws for a request that the limit
  // of the device refuses (admit()).
  void* take(size_t requested, c10::Device device);
  // Gives a block back to its source. Returns false for blocks that no source has served.
  bool give_back(void* data);
  // Makes the source the owner of a block that it serves once more, at an address of its choice.
  void own(const std::shared_ptr<BlockSource>& source, void* data, int64_t bytes);

 private:
  struct Block {
    int64_t bytes = 0;
    std::shared_ptr<BlockSource> source;
  };

  // A source that takes memory of the device may run code that frees tensors.
  std::recursive_mutex mutex_;
  std::unordered_map<void*, Block> blocks_;
};

}  // namespace reprise::runtime::internal::device
