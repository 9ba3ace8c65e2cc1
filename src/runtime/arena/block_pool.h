// This is a pool of CPU blocks that are used again instead of going back to the system.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "reprise/runtime/allocator.h"

namespace reprise::runtime::internal::arena {

// A BlockPool keeps blocks that are given back for the next request of the same size. So operations
// are timed without the page faults of fresh memory, which a step that lies in an arena does not
// have. With a capacity in bytes, it keeps no block that would not fit into the capacity beside the
// blocks in use.
class BlockPool final : public BlockSource {
 public:
  explicit BlockPool(std::optional<int64_t> capacity = std::nullopt) : capacity_(capacity) {}
  ~BlockPool() override;
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  void* take(int64_t bytes) override;
  void give_back(void* data, int64_t bytes) override;

 private:
  void drop_until_idle_is(int64_t bytes);

  const std::optional<int64_t> capacity_;
  std::map<int64_t, std::vector<void*>> free_;  // blocks by size
  int64_t in_use_ = 0, idle_ = 0;               // bytes
};

}  // namespace reprise::runtime::internal::arena
