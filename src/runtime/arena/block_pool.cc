#include "runtime/arena/block_pool.h"

#include <cstdlib>

namespace reprise::runtime::internal::arena {

BlockPool::~BlockPool() {
  for (const auto& [bytes, blocks] : free_) {
    for (void* block : blocks) std::free(block);
  }
}

void* BlockPool::take(int64_t bytes) {
  const auto found = free_.find(bytes);
  if (found != free_.end() && !found->second.empty()) {
    void* block = found->second.back();
    found->second.pop_back();
    return block;
  }
  void* block = nullptr;
  return posix_memalign(&block, 64, static_cast<size_t>(bytes)) == 0 ? block : nullptr;
}

void BlockPool::give_back(void* data, int64_t bytes) { free_[bytes].push_back(data); }

}  // namespace reprise::runtime::internal::arena
