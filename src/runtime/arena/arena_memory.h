// This is the memory that an arena has its blocks in.
#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "reprise/pack/pages.h"
#include "runtime/arena/free_list.h"

namespace reprise::runtime::internal::arena {

class ArenaMemory {
 public:
  virtual ~ArenaMemory() = default;
  // Returns where a block of the packing lies.
  virtual void* address(size_t block) const = 0;
  virtual bool contains(const void* data) const = 0;
  // Says whether this process is a child of fork() that must not use the memory again.
  virtual bool of_the_parent() const = 0;
};

// Takes memory for a packing: pages on the CPU, and one block of its allocator on another device.
// Returns null if there is none, and for a packing of no bytes. Blocks in several extents are for the
// CPU only.
std::unique_ptr<ArenaMemory> take_memory(const PagedPacking& packing, c10::Device device);

// A DeviceScratch is one block of a device's allocator that serves requests in any order, by best
// fit.
class DeviceScratch {
 public:
  // Throws c10::OutOfMemoryError.
  DeviceScratch(int64_t bytes, c10::Device device);
  ~DeviceScratch();
  DeviceScratch(const DeviceScratch&) = delete;
  DeviceScratch& operator=(const DeviceScratch&) = delete;

  // Returns null if no free range is large enough.
  void* take(int64_t bytes);
  void give_back(void* data, int64_t bytes);
  bool contains(const void* data) const { return data >= base_ && data < base_ + bytes_; }

 private:
  const c10::Device device_;
  const int64_t bytes_;
  FreeList free_;
  char* base_ = nullptr;
};

}  // namespace reprise::runtime::internal::arena
