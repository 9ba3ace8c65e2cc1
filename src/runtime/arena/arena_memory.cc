#include "runtime/arena/arena_memory.h"

#include <c10/util/Exception.h>

#include <optional>
#include <vector>

#include "runtime/arena/page_memory.h"
#include "runtime/device/device_heap.h"

namespace reprise::runtime::internal::arena {

using device::count_arena;
using device::count_block;
using device::DeviceHeap;
using device::heap_of;

namespace {

// A DeviceMemory is one block of a device's allocator.
class DeviceMemory final : public ArenaMemory {
 public:
  DeviceMemory(const PagedPacking& packing, c10::Device device)
      : heap_(*heap_of(device)), device_(device), bytes_(packing.height.count()) {
    for (const std::vector<Extent>& extents : packing.extents) {
      offsets_.push_back(extents.empty() ? 0 : extents[0].offset.count());
    }
    base_ = static_cast<char*>(heap_.take(bytes_, device));
    count_arena(device_, bytes_);
  }
  ~DeviceMemory() override {
    heap_.give_back(base_);
    count_arena(device_, -bytes_);
  }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  void* address(size_t block) const override { return base_ + offsets_[block]; }
  bool contains(const void* data) const override { return data >= base_ && data < base_ + bytes_; }
  // The contexts of devices do not survive fork(), so a child cannot use any memory of them.
  bool of_the_parent() const override { return false; }

 private:
  DeviceHeap& heap_;
  const c10::Device device_;
  const int64_t bytes_;
  std::vector<int64_t> offsets_;  // by block
  char* base_ = nullptr;
};

}  // namespace

std::unique_ptr<ArenaMemory> take_memory(const PagedPacking& packing, c10::Device device) {
  if (device.is_cpu()) return PageMemory::map(packing);
  if (packing.height <= Bytes(0)) return nullptr;
  try {
    return std::make_unique<DeviceMemory>(packing, device);
  } catch (const c10::OutOfMemoryError&) {
    return nullptr;  // The device's memory is in pieces. The heap goes on serving.
  }
}

DeviceScratch::DeviceScratch(int64_t bytes, c10::Device device)
    : device_(device), bytes_(bytes), free_(bytes) {
  base_ = static_cast<char*>(heap_of(device)->take(bytes, device));
  count_arena(device_, bytes_);
}

DeviceScratch::~DeviceScratch() {
  heap_of(device_)->give_back(base_);
  count_arena(device_, -bytes_);
}

void* DeviceScratch::take(int64_t bytes) {
  const std::optional<int64_t> offset = free_.take(bytes);
  if (!offset) return nullptr;
  count_block(device_, bytes, 1);
  return base_ + *offset;
}

void DeviceScratch::give_back(void* data, int64_t bytes) {
  free_.give_back(static_cast<char*>(data) - base_, bytes);
  count_block(device_, -bytes);
}

}  // namespace reprise::runtime::internal::arena
