#include "runtime/device/device_heap.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <utility>

#ifdef REPRISE_WITH_CUDA
#include "runtime/device/cuda/cuda_heap.h"
#endif

namespace reprise::runtime {

namespace {

// Sources has the sources of this thread for the CPU and for one other device. Null stands for the
// device's allocator.
struct Sources {
  std::shared_ptr<BlockSource> host, device;
  c10::Device where{c10::kCPU};  // the other device
};
thread_local Sources sources;

}  // namespace

BlockSourceScope::BlockSourceScope(std::shared_ptr<BlockSource> source, c10::Device device)
    : device_(device), device_before_(sources.where) {
  if (device.is_cpu()) {
    before_ = std::exchange(sources.host, std::move(source));
  } else {
    before_ = std::exchange(sources.device, std::move(source));
    sources.where = device;
  }
}

BlockSourceScope::~BlockSourceScope() {
  if (device_.is_cpu()) {
    sources.host = std::move(before_);
  } else {
    sources.device = std::move(before_);
    sources.where = device_before_;
  }
}

namespace internal::device {
namespace {

std::array<std::atomic<DeviceHeap*>, static_cast<size_t>(c10::COMPILE_TIME_MAX_DEVICE_TYPES)>
    registered{};

constexpr size_t kDevices = 64;  // LibTorch's own limit for CUDA
struct Counts {
  std::mutex mutex;
  std::array<ArenaCount, kDevices> by_index;
};

// Never destroyed: tensors of static lifetime give their memory back after main().
Counts& counts() {
  static auto* const instance = new Counts;
  return *instance;
}

// The count of a device. The caller holds the lock. Processes use one kind of accelerator.
ArenaCount& count_of(c10::Device device) {
  return counts().by_index[static_cast<size_t>(std::max<int>(0, device.index())) % kDevices];
}

}  // namespace

int64_t DeviceHeap::limited_bytes(c10::Device device) { return memory_count(device).live; }

void register_heap(c10::DeviceType type, DeviceHeap& heap) {
  registered[static_cast<size_t>(type)].store(&heap);
}

DeviceHeap* heap_of(c10::Device device) {
  if (DeviceHeap* const heap = registered[static_cast<size_t>(device.type())].load()) return heap;
#ifdef REPRISE_WITH_CUDA
  if (device.is_cuda()) return &cuda_heap();
#endif
  return nullptr;
}

bool has_arenas(c10::Device device) { return device.is_cpu() || heap_of(device) != nullptr; }

const std::shared_ptr<BlockSource>& block_source(c10::Device device) {
  static const std::shared_ptr<BlockSource> none;
  if (device.is_cpu()) return sources.host;
  return device == sources.where ? sources.device : none;
}

ArenaCount arena_count(c10::Device device) {
  const std::lock_guard<std::mutex> lock(counts().mutex);
  return count_of(device);
}

void reset_arena_peak(c10::Device device) {
  const std::lock_guard<std::mutex> lock(counts().mutex);
  ArenaCount& count = count_of(device);
  count.reserved_peak = count.reserved;
  count.peak = count.live;
  count.allocations = 0;
}

void count_arena(c10::Device device, int64_t reserved) {
  const std::lock_guard<std::mutex> lock(counts().mutex);
  ArenaCount& count = count_of(device);
  count.reserved += reserved;
  count.reserved_peak = std::max(count.reserved_peak, count.reserved);
}

void count_block(c10::Device device, int64_t bytes, int64_t allocations) {
  const std::lock_guard<std::mutex> lock(counts().mutex);
  ArenaCount& count = count_of(device);
  count.live += bytes;
  count.peak = std::max(count.peak, count.live);
  count.allocations += allocations;
}

}  // namespace internal::device
}  // namespace reprise::runtime
