#include "runtime/device/served_blocks.h"

#include <utility>

#include "runtime/device/device_heap.h"
#include "runtime/device/request_limit.h"
#include "runtime/device/tensor_bytes.h"

namespace reprise::runtime::internal::device {

void* ServedBlocks::take(size_t requested, c10::Device device) {
  if (requested == 0) return nullptr;
  const bool limited = device_limit(device).has_value();
  const std::shared_ptr<BlockSource>& source = block_source(device);
  if (!source && !limited) return nullptr;
  const int64_t bytes = counted_bytes(static_cast<int64_t>(requested), device);
  if (limited) admit(bytes, device);
  if (!source) return nullptr;
  const std::lock_guard<std::recursive_mutex> lock(mutex_);
  void* const data = source->take(bytes);
  if (data != nullptr) blocks_[data] = {bytes, source};
  return data;
}

bool ServedBlocks::give_back(void* data) {
  Block block;  // destroyed without the lock: the source may end with it
  const std::lock_guard<std::recursive_mutex> lock(mutex_);
  const auto found = blocks_.find(data);
  if (found == blocks_.end()) return false;
  block = std::move(found->second);
  blocks_.erase(found);
  block.source->give_back(data, block.bytes);
  return true;
}

void ServedBlocks::own(const std::shared_ptr<BlockSource>& source, void* data, int64_t bytes) {
  const std::lock_guard<std::recursive_mutex> lock(mutex_);
  blocks_[data] = {bytes, source};
}

}  // namespace reprise::runtime::internal::device
