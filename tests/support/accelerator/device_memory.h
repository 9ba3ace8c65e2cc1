// Hands out the memory of one device.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <cstdint>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "accelerator.h"
#include "double_mapping.h"
#include "holes.h"

namespace sim {

// A DeviceMemory hands out blocks of whole granules. Tensors hold front addresses, which the host cannot
// touch; kernels use the back. A freed block counts as free at once. If copies are queued in its stream,
// or in a stream that record_stream() named, the block is handed out again only when these copies have
// landed.
class DeviceMemory {
 public:
  DeviceMemory(int index, const Options& options);

  // Returns a front address, of the block server if there is one that serves the request. Throws
  // c10::OutOfMemoryError if the capacity or the holes do not suffice.
  char* take(size_t bytes);
  void give_back(void* front);
  // These functions do the same, past the block server.
  char* take_own(size_t bytes);
  void give_back_own(void* front);
  void record_stream(void* front, int stream);

  const DoubleMapping& pages() const { return pages_; }
  c10::CachingDeviceAllocator::DeviceStats stats();
  void reset_peak();
  void reset_accumulated();
  size_t live();
  size_t capacity();
  void set_capacity(size_t bytes);
  void fail_allocation(uint64_t number);

 private:
  struct Block {
    size_t bytes = 0, requested = 0;
    int stream = 0;       // the one that was current when it was taken
    std::set<int> named;  // by record_stream()
  };
  struct Waiting {  // freed, but copies may still use it
    size_t offset = 0, bytes = 0;
    std::vector<std::pair<int, uint64_t>> until;  // stream and ticket
  };
  // These have the mutex held.
  void make_free(size_t offset, size_t bytes);
  void collect_waiting(bool land_copies);
  [[noreturn]] void refuse(size_t requested, size_t bytes, bool on_purpose);
  void fill(size_t offset, size_t bytes, uint16_t pattern);

  const int index_;
  const size_t granule_;
  const bool poison_;
  DoubleMapping pages_;
  std::mutex mutex_;
  Holes holes_;
  std::unordered_map<size_t, Block> blocks_;  // by offset
  std::vector<Waiting> waiting_;
  size_t capacity_, live_ = 0, waiting_bytes_ = 0;
  uint64_t fail_in_ = 0;
  c10::CachingDeviceAllocator::DeviceStats stats_;
};

void make_memories(const Options& options);
DeviceMemory& memory(int device);
DeviceMemory* memory_with_front(const void* address);  // null: none
DeviceMemory* memory_with_back(const void* address);   // null: none

}  // namespace sim
