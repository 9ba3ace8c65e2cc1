// CPU blocks that are used again instead of going back to the system.
#pragma once

#include <map>
#include <vector>

#include "reprise/runtime/allocator.h"

namespace reprise::runtime::internal::arena {

// Keeps what is given back, for the next request of the same size: so that operations are timed
// without the page faults that fresh memory costs, which a step served from one block does not have.
class BlockPool final : public BlockSource {
 public:
  BlockPool() = default;
  ~BlockPool() override;
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  void* take(int64_t bytes) override;
  void give_back(void* data, int64_t bytes) override;

 private:
  std::map<int64_t, std::vector<void*>> free_;  // by size
};

}  // namespace reprise::runtime::internal::arena
