// These are the allocators of devices that let an arena serve a thread's blocks.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>

#include "reprise/runtime/allocator.h"

namespace reprise::runtime::internal::device {

// A DeviceHeap is what an arena needs of a device's own allocator. The allocator asks block_source()
// before it serves a request itself.
class DeviceHeap {
 public:
  virtual ~DeviceHeap() = default;
  // Takes a block of the device from its own allocator. Throws as the allocator does.
  virtual void* take(int64_t bytes, c10::Device device) = 0;
  virtual void give_back(void* data) = 0;
  // Makes the owner of a block that the source serves once more, at an address of its choice.
  virtual c10::DataPtr own(const std::shared_ptr<BlockSource>& source, void* data, int64_t bytes,
                           c10::Device device) = 0;
  // Returns the live bytes that a limit is compared with (request_limit.h): those of memory_count(),
  // unless the allocator's blocks are larger than what was asked for.
  virtual int64_t limited_bytes(c10::Device device);
};

// Returns the heap of a device other than the CPU, or null if no arena can serve its blocks. CUDA
// has a heap where the runtime was built for CUDA.
DeviceHeap* heap_of(c10::Device device);

// Gives a kind of device a heap, which stays. It replaces the one that was there.
void register_heap(c10::DeviceType type, DeviceHeap& heap);

// Says whether an arena can hold the blocks of a step on this device.
bool has_arenas(c10::Device device);

// Returns the source that serves this thread's requests for memory of the device; null: the device's
// own allocator. On the CPU it is another source than on devices.
const std::shared_ptr<BlockSource>& block_source(c10::Device device);

// An ArenaCount counts the memory of arenas on a device other than the CPU. The device's allocator
// counts the memory of an arena as one block, from the first step to the last. memory_count()
// counts the blocks in it instead, as it does on the CPU.
struct ArenaCount {
  int64_t reserved = 0;       // bytes that arenas hold of the device's allocator
  int64_t reserved_peak = 0;  // largest `reserved` since the last reset
  int64_t live = 0;           // bytes of the blocks in them
  int64_t peak = 0;           // largest `live` since the last reset
  int64_t allocations = 0;    // that the device's allocator has not seen, since the last reset
};
ArenaCount arena_count(c10::Device device);
void reset_arena_peak(c10::Device device);
// These count differences.
void count_arena(c10::Device device, int64_t reserved);
void count_block(c10::Device device, int64_t bytes, int64_t allocations = 0);

}  // namespace reprise::runtime::internal::device
