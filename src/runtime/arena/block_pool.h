// A pool of CPU blocks that are used again instead of going back to the system.
#pragma once

#include <map>
#include <vector>

#include "reprise/runtime/allocator.h"

namespace reprise::runtime::internal::arena {

// A BlockPool keeps blocks that are given back for the next request of the same size. So operations
// are timed without the page faults of fresh memory, which a step that lies in an arena does not
// have.
class BlockPool final : public BlockSource {
 public:
  BlockPool() = default;
  ~BlockPool() override;
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  void* take(int64_t bytes) override;
  void give_back(void* data, int64_t bytes) override;

 private:
  std::map<int64_t, std::vector<void*>> free_;  // blocks by size
};

}  // namespace reprise::runtime::internal::arena
