// This header counts device bytes on every device, and has the limits that enforce budgets.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "reprise/model/errors.h"

namespace reprise::runtime {

// Makes LibTorch take all CPU tensor memory (oneDNN's scratch included) from an allocator that
// counts live bytes exactly and can enforce a limit. Blocks count as multiples of 64 bytes, which
// is the alignment.
//
// The threads of one parallel operation (at::parallel_for) may give blocks back. These bytes count
// until the operation is over, unless the same thread takes them again. So the count does not
// depend on which thread is faster.
//
// The function is idempotent and thread-safe. A child process of fork() can go on using the
// allocator. A limit that was in force belongs to the parent and is lifted in the child. Memory
// that was taken before the installation stays valid and is not counted. The allocator does not see
// memory that LibTorch takes elsewhere: files mapped by torch::load, share_memory(), from_blob.
void install_cpu_allocator();
// Returns true if requests reach this allocator, also where another allocator stands in front and
// passes them on.
bool cpu_allocator_installed();

struct MemoryCount {
  int64_t live = 0;         // bytes
  int64_t peak = 0;         // largest `live` since the last reset_peak()
  int64_t allocations = 0;  // since the last reset_peak()

  bool operator==(const MemoryCount&) const = default;
};

// Returns the count of this allocator for the CPU. For other devices it returns the statistics of
// LibTorch's caching allocator (`allocated_bytes`), which rounds to 512 bytes.
MemoryCount memory_count(c10::Device device);
void reset_peak(c10::Device device);

// Lets go of tensors as soon as no step is under way on any thread. Threads beside the training give memory
// back with it: a step predicts its peak from what is live when it begins.
void drop_between_steps(std::vector<at::Tensor> tensors);

// Returns the most bytes that threads other than the calling one took in one parallel operation on
// the CPU since the last call of this function. These bytes are in memory_count(), too. A
// BlockSource does not serve them.
int64_t take_cpu_workers_peak();

// Returns whether the CPU allocator handed out this block.
bool cpu_allocator_owns(const void* data);

// Blocks are numbered from 1 in the order in which they were handed out. The first function returns
// the number of the last block, the second that of the live block at this address (0: none).
uint64_t cpu_allocation_serial();
uint64_t cpu_allocation_serial(const void* data);

// A BlockSource supplies blocks of one device in place of the device's own allocator, on the thread
// on which it is in use. Its blocks count like any other.
class BlockSource {
 public:
  virtual ~BlockSource() = default;
  // Returns a block, or null to take this one from the device's allocator. The allocator is locked
  // during the call, so the function must not allocate tensors.
  virtual void* take(int64_t bytes) = 0;
  // Takes back a block that take() handed out. Any thread may call this function. The allocator is
  // locked here, too.
  virtual void give_back(void* data, int64_t bytes) = 0;
};

// Uses a source on this thread for a scope. The source stays alive until all its blocks are back.
// Without a source, the device's allocator serves this thread. On a device other than the CPU the
// source is asked only if the runtime can serve blocks there (arenas_on() in runtime/device).
class BlockSourceScope {
 public:
  explicit BlockSourceScope(std::shared_ptr<BlockSource> source,
                            c10::Device device = c10::Device(c10::kCPU));
  ~BlockSourceScope();
  BlockSourceScope(const BlockSourceScope&) = delete;
  BlockSourceScope& operator=(const BlockSourceScope&) = delete;

 private:
  c10::Device device_;
  std::shared_ptr<BlockSource> before_;
  c10::Device device_before_;
};

// Sets a limit for a device. A request that would make the live bytes (memory_count()) exceed the limit
// throws BudgetError, and nothing is taken. If `bytes` is absent, there is no limit. On a device other
// than the CPU, the runtime has to stand before the device's allocator, as it does in a build for
// CUDA. Throws InputError for a limit on a device where it does not.
void set_memory_limit(std::optional<int64_t> bytes, c10::Device device = c10::Device(c10::kCPU));
std::optional<int64_t> memory_limit(c10::Device device = c10::Device(c10::kCPU));

// Returns the number of requests for memory of a device that failed so far: a limit refused them, or
// there was no more memory. On a device other than the CPU the device's allocator counts the latter,
// and whoever resets its statistics resets their number.
uint64_t failed_requests(c10::Device device = c10::Device(c10::kCPU));

// A refusal throws another exception in place of the BudgetError of a refused request. It is for
// languages whose bindings of LibTorch know exceptions of their own. The allocator is locked during
// the call, so the function must not allocate tensors or wait for another thread. Null restores the
// BudgetError.
using Refusal = void (*)(const BudgetError& error);
void set_refusal(Refusal refusal);

// Sets a limit for a scope and puts the old limit back.
class MemoryLimitGuard {
 public:
  explicit MemoryLimitGuard(std::optional<int64_t> bytes,
                            c10::Device device = c10::Device(c10::kCPU))
      : device_(device), before_(memory_limit(device)) {
    set_memory_limit(bytes, device_);
  }
  ~MemoryLimitGuard() { set_memory_limit(before_, device_); }
  MemoryLimitGuard(const MemoryLimitGuard&) = delete;
  MemoryLimitGuard& operator=(const MemoryLimitGuard&) = delete;

 private:
  c10::Device device_;
  std::optional<int64_t> before_;
};

}  // namespace reprise::runtime
