// Device bytes: counted everywhere, enforced on CPU.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "reprise/model/errors.h"

namespace reprise::runtime {

// Makes LibTorch take all CPU tensor memory (oneDNN's scratch included) from an allocator that counts
// live bytes exactly and can enforce a limit. Blocks count as multiples of 64 bytes, the alignment. What the
// threads of one parallel operation (at::parallel_for) give back counts until the operation is over, unless
// the same thread takes it again: the count does not depend on which of them is faster.
// Idempotent and thread-safe. A child process of fork() can go on using it; a limit that was in force
// is the parent's, and is lifted in the child. Memory that was taken before stays valid and is not counted. Does not see
// memory that LibTorch takes elsewhere: files mapped by torch::load, share_memory(), from_blob.
void install_cpu_allocator();
bool cpu_allocator_installed();

struct MemoryCount {
  int64_t live = 0;         // bytes
  int64_t peak = 0;         // largest `live` since the last reset_peak()
  int64_t allocations = 0;  // since the last reset_peak()

  bool operator==(const MemoryCount&) const = default;
};

// CPU: this allocator's count. Other devices: the statistics of LibTorch's caching allocator
// (`allocated_bytes`), where 512-byte rounding applies.
MemoryCount memory_count(c10::Device device);
void reset_peak(c10::Device device);

// The most bytes that threads beside the calling one took in one parallel operation on the CPU, since the
// last call of this. They are in memory_count(), too; a BlockSource does not serve them.
int64_t take_cpu_workers_peak();

// Whether the CPU allocator handed out this block.
bool cpu_allocator_owns(const void* data);

// Blocks are numbered from 1 in the order in which they were handed out. The number of the last one, and
// of the live block that begins at this address (0: none).
uint64_t cpu_allocation_serial();
uint64_t cpu_allocation_serial(const void* data);

// Where CPU blocks come from in the heap's place, on the thread on which it is in use. They count like
// any other.
class BlockSource {
 public:
  virtual ~BlockSource() = default;
  // Called with the allocator locked: must not allocate tensors. Null: take this one from the heap.
  virtual void* take(int64_t bytes) = 0;
  // A block that take() handed out, from whatever thread.
  virtual void give_back(void* data, int64_t bytes) = 0;
};

// Uses a source on this thread for a scope. It stays alive until all its blocks are back.
class BlockSourceScope {
 public:
  explicit BlockSourceScope(std::shared_ptr<BlockSource> source);
  ~BlockSourceScope();
  BlockSourceScope(const BlockSourceScope&) = delete;
  BlockSourceScope& operator=(const BlockSourceScope&) = delete;

 private:
  std::shared_ptr<BlockSource> before_;
};

// A CPU request that would make the live bytes exceed the limit throws BudgetError; nothing is taken.
// Absent: no limit. Other devices are not limited here.
void set_cpu_limit(std::optional<int64_t> bytes);
std::optional<int64_t> cpu_limit();

// Requests that failed so far: refused by a limit, or because the machine has no more memory.
uint64_t cpu_failures();

// Throws something else in place of the BudgetError of a refused request, from then on: for languages
// whose bindings of LibTorch know exceptions of their own. Called with the allocator locked: must not
// allocate tensors or wait for anybody. Null: the BudgetError itself.
using Refusal = void (*)(const BudgetError& error);
void set_cpu_refusal(Refusal refusal);

// Sets a limit for a scope and puts the old one back.
class CpuLimitGuard {
 public:
  explicit CpuLimitGuard(std::optional<int64_t> bytes) : before_(cpu_limit()) {
    set_cpu_limit(bytes);
  }
  ~CpuLimitGuard() { set_cpu_limit(before_); }
  CpuLimitGuard(const CpuLimitGuard&) = delete;
  CpuLimitGuard& operator=(const CpuLimitGuard&) = delete;

 private:
  std::optional<int64_t> before_;
};

}  // namespace reprise::runtime
