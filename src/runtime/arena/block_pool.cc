#include "runtime/arena/block_pool.h"

#include <algorithm>
#include <iterator>

#include "runtime/device/heap_block.h"

namespace reprise::runtime::internal::arena {

using device::give_back_heap_block;
using device::take_heap_block;

BlockPool::~BlockPool() { drop_until_idle_is(0); }

// Gives idle blocks back to the system, the largest first.
void BlockPool::drop_until_idle_is(int64_t bytes) {
  while (idle_ > bytes) {
    const auto largest = std::prev(free_.end());
    if (largest->second.empty()) {
      free_.erase(largest);
      continue;
    }
    give_back_heap_block(largest->second.back());
    largest->second.pop_back();
    idle_ -= largest->first;
  }
}

void* BlockPool::take(int64_t bytes) {
  const auto found = free_.find(bytes);
  if (found != free_.end() && !found->second.empty()) {
    void* block = found->second.back();
    found->second.pop_back();
    idle_ -= bytes;
    in_use_ += bytes;
    return block;
  }
  if (capacity_) drop_until_idle_is(std::max<int64_t>(0, *capacity_ - in_use_ - bytes));
  void* block = take_heap_block(bytes);
  if (block == nullptr) {
    drop_until_idle_is(0);
    block = take_heap_block(bytes);
    if (block == nullptr) return nullptr;
  }
  in_use_ += bytes;
  return block;
}

void BlockPool::give_back(void* data, int64_t bytes) {
  in_use_ -= bytes;
  free_[bytes].push_back(data);
  idle_ += bytes;
}

}  // namespace reprise::runtime::internal::arena
