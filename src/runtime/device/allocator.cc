#include "reprise/runtime/allocator.h"

#include <ATen/Parallel.h>
#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>

#include "reprise/model/errors.h"
#include "runtime/device/device.h"
#include "runtime/device/device_heap.h"
#include "runtime/device/foreign_memory.h"
#include "runtime/device/heap_block.h"
#include "runtime/device/request_limit.h"
#include "runtime/device/room.h"
#include "runtime/device/tensor_bytes.h"

namespace reprise::runtime {

using internal::device::block_source;
using internal::device::counted_bytes;
using internal::device::give_back_heap_block;
using internal::device::room_maker;
using internal::device::take_heap_block;
using internal::device::with_index;

namespace {

int64_t rounded(size_t bytes) { return counted_bytes(static_cast<int64_t>(bytes)); }

struct CountedBlock {
  int64_t bytes = 0;
  uint64_t serial = 0;
  std::shared_ptr<BlockSource> source;  // null: the heap
  std::thread::id taker;
  bool foreign = false;  // taken by other work than what was measured then
};

// The data pointer and the context pointer of each block are the same, as raw_allocate() demands.
class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t requested) override {
    if (requested == 0) return {nullptr, nullptr, &release, c10::Device(c10::kCPU)};
    const int64_t bytes = rounded(requested);
    std::unique_lock<std::mutex> lock(mutex_);
    if (const int64_t missing = bytes_over_limit(bytes); missing > 0) {
      std::string held;
      lock.unlock();
      if (auto* const maker = room_maker()) held = maker->make_room(missing);
      lock.lock();
      if (bytes_over_limit(bytes) > 0) refuse(bytes, held);
    }
    const bool foreign = is_foreign();
    int64_t* const returned = foreign ? nullptr : returned_by_this_thread();
    const int64_t reused = returned ? std::min(*returned, bytes) : 0, fresh = bytes - reused;
    CountedBlock block{.bytes = bytes,
                       .serial = serial_ + 1,
                       .source = block_source(c10::kCPU),
                       .taker = std::this_thread::get_id(),
                       .foreign = foreign};
    void* data = block.source ? block.source->take(bytes) : nullptr;
    if (data == nullptr) {
      block.source.reset();
      data = take_heap_block(bytes);
      if (data == nullptr) {
        ++failures_;
        throw std::bad_alloc();
      }
    }
    blocks_.emplace(data, std::move(block));
    ++serial_;
    if (foreign) {
      foreign_ += bytes;
      return {data, data, &release, c10::Device(c10::kCPU)};
    }
    if (returned) *returned -= reused;
    returned_ -= reused;
    count_.live += fresh;
    count_.peak = std::max(count_.peak, count_.live);
    recent_peak_ = std::max(recent_peak_, count_.live);
    ++count_.allocations;
    if (returned && at::get_thread_num() != 0) {
      workers_ += fresh;
      workers_peak_ = std::max(workers_peak_, workers_);
    }
    return {data, data, &release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t count) const override {
    default_copy_data(to, from, count);
  }

  MemoryCount count() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (is_foreign()) {
      MemoryCount all = count_;
      all.live += foreign_;
      all.peak = std::max(all.peak, all.live);
      return all;
    }
    returned_by_this_thread();
    return count_;
  }
  void count_apart() {
    std::lock_guard<std::mutex> lock(mutex_);
    apart_ = true;
    apart_since_ = serial_;
  }
  void count_together() {
    std::lock_guard<std::mutex> lock(mutex_);
    apart_ = false;
    count_.live += std::exchange(foreign_, 0);
    count_.peak = std::max(count_.peak, count_.live);
    recent_peak_ = std::max(recent_peak_, count_.live);
  }
  void reset_peak() {
    std::lock_guard<std::mutex> lock(mutex_);
    returned_by_this_thread();
    count_.peak = count_.live;
    count_.allocations = 0;
  }
  int64_t take_recent_peak() {
    std::lock_guard<std::mutex> lock(mutex_);
    returned_by_this_thread();
    return std::exchange(recent_peak_, count_.live);
  }
  int64_t take_workers_peak() {
    std::lock_guard<std::mutex> lock(mutex_);
    returned_by_this_thread();
    return std::exchange(workers_peak_, 0);
  }
  bool owns(const void* data) {
    std::lock_guard<std::mutex> lock(mutex_);
    return blocks_.contains(const_cast<void*>(data));
  }
  uint64_t serial() {
    std::lock_guard<std::mutex> lock(mutex_);
    return serial_;
  }
  uint64_t serial(const void* data) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto block = blocks_.find(const_cast<void*>(data));
    return block == blocks_.end() ? 0 : block->second.serial;
  }
  void set_limit(std::optional<int64_t> bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    limit_ = bytes;
  }
  std::optional<int64_t> limit() {
    std::lock_guard<std::mutex> lock(mutex_);
    return limit_;
  }
  uint64_t failures() {
    std::lock_guard<std::mutex> lock(mutex_);
    return failures_;
  }

  // These functions surround fork(). The child has only the thread that called fork(), so a lock
  // that another thread held would stay locked in it. before_fork() therefore takes the lock.
  void before_fork() { mutex_.lock(); }
  void after_fork_in_parent() { mutex_.unlock(); }
  void after_fork_in_child() {
    limit_.reset();
    mutex_.unlock();
  }

 private:
  // Returns by how much a request would exceed the limit.
  int64_t bytes_over_limit(int64_t bytes) {
    const int64_t* const returned = is_foreign() ? nullptr : returned_by_this_thread();
    const int64_t reused = returned ? std::min(*returned, bytes) : 0;
    return limit_ ? count_.live + foreign_ + bytes - reused - *limit_ : 0;
  }
  [[noreturn]] void refuse(int64_t bytes, const std::string& held) {
    ++failures_;
    internal::device::throw_refused(
        internal::device::refused_request(*limit_, count_.live, bytes, held));
  }
  static void release(void* data);

  // Says whether this thread's requests are those of other work than what is measured. The threads of
  // a parallel operation work for the thread that measures.
  bool is_foreign() const {
    return apart_ && !internal::device::works_for_measuring() && !at::in_parallel_region();
  }
  // Says so of a block that comes back. Autograd's threads may give back what they took for the thread
  // that measures when they no longer have its mark. What a thread took before and gives back itself
  // is its own business.
  bool is_foreign(const CountedBlock& block) const {
    if (!apart_) return false;
    if (block.serial > apart_since_) return block.foreign;
    return block.taker == std::this_thread::get_id() && is_foreign();
  }

  // The threads of one parallel operation take and give back scratch of their own. How much scratch
  // is there at once depends on when each thread works. So the bytes that a thread gives back count
  // until the operation is over, and the same thread may take them again. The count is then the
  // most that can be there, and it is the same in every run.
  //
  // Returns null outside of parallel operations. All earlier operations are then over, so the bytes
  // that they gave back are taken off the count.
  int64_t* returned_by_this_thread() {
    if (at::in_parallel_region()) {
      return &returned_by_[static_cast<size_t>(at::get_thread_num()) % returned_by_.size()];
    }
    if (returned_ > 0) {
      count_.live -= std::exchange(returned_, 0);
      returned_by_.fill(0);
    }
    workers_ = 0;
    return nullptr;
  }

  std::mutex mutex_;
  std::unordered_map<void*, CountedBlock> blocks_;
  uint64_t serial_ = 0;
  MemoryCount count_;
  int64_t recent_peak_ = 0;                 // since the last take_recent_peak()
  std::array<int64_t, 256> returned_by_{};  // bytes, by thread of the parallel operation
  int64_t returned_ = 0;                    // the sum of returned_by_
  int64_t workers_ = 0,
          workers_peak_ = 0;  // bytes that threads but the first took in parallel operations
  bool apart_ = false;         // whether a thread measures
  uint64_t apart_since_ = 0;   // the last block before
  int64_t foreign_ = 0;  // live bytes, taken less given back, of other work since then
  std::optional<int64_t> limit_;
  uint64_t failures_ = 0;
};

// The allocator is never destroyed: tensors of static lifetime give their memory back after main().
CountingAllocator& allocator() {
  static auto* instance = new CountingAllocator;
  return *instance;
}

void CountingAllocator::release(void* data) {
  if (!data) return;
  CountingAllocator& self = allocator();
  CountedBlock block;  // destroyed without the lock: the source may end with it
  bool counted = false;
  {
    std::lock_guard<std::mutex> lock(self.mutex_);
    // Raw blocks that were taken before the allocator was installed may come back here.
    if (auto found = self.blocks_.find(data); found != self.blocks_.end()) {
      counted = true;
      block = std::move(found->second);
      if (self.is_foreign(block)) {
        self.foreign_ -= block.bytes;
      } else if (int64_t* const returned = self.returned_by_this_thread()) {
        *returned += block.bytes;
        self.returned_ += block.bytes;
      } else {
        self.count_.live -= block.bytes;
      }
      self.blocks_.erase(found);
      if (block.source) block.source->give_back(data, block.bytes);
    }
  }
  if (!counted) {
    std::free(data);
  } else if (!block.source) {
    give_back_heap_block(data);
  }
}

}  // namespace

void install_cpu_allocator() {
  static std::once_flag once;
  std::call_once(once, [] {
    pthread_atfork([] { allocator().before_fork(); }, [] { allocator().after_fork_in_parent(); },
                   [] { allocator().after_fork_in_child(); });
    c10::SetAllocator(c10::kCPU, &allocator(), /*priority=*/255);
  });
}

bool cpu_allocator_installed() {
  c10::Allocator* const now = c10::GetAllocator(c10::kCPU);
  if (now == &allocator()) return true;
  // Another one may stand in front and pass requests on.
  const c10::DataPtr byte = now->allocate(1);
  return allocator().owns(byte.get());
}

MemoryCount memory_count(c10::Device device) {
  if (device.is_cpu()) return allocator().count();
  device = with_index(device);
  auto stats = c10::getDeviceAllocator(device.type())->getDeviceStats(device.index());
  const auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  // The rest of the device's memory stays as it is while a step runs that lies in an arena.
  const internal::device::ArenaCount arenas = internal::device::arena_count(device);
  return {.live = stats.allocated_bytes[all].current - arenas.reserved + arenas.live,
          .peak = stats.allocated_bytes[all].peak - arenas.reserved_peak + arenas.peak,
          .allocations = stats.allocation[all].allocated + arenas.allocations};
}

void reset_peak(c10::Device device) {
  if (device.is_cpu()) {
    allocator().reset_peak();
  } else {
    device = with_index(device);
    c10::getDeviceAllocator(device.type())->resetPeakStats(device.index());
    internal::device::reset_arena_peak(device);
  }
}

int64_t take_cpu_workers_peak() { return allocator().take_workers_peak(); }
bool cpu_allocator_owns(const void* data) { return allocator().owns(data); }

void set_memory_limit(std::optional<int64_t> bytes, c10::Device device) {
  if (device.is_cpu()) return allocator().set_limit(bytes);
  if (bytes && !internal::device::has_limits(device)) {
    throw InputError("memory of " + device.str() +
                     " cannot be limited: the runtime has no front before its allocator");
  }
  device = with_index(device);
  if (bytes) internal::device::granule(device);  // A request under a limit asks for it.
  internal::device::set_device_limit(bytes, device);
}

std::optional<int64_t> memory_limit(c10::Device device) {
  return device.is_cpu() ? allocator().limit() : internal::device::device_limit(with_index(device));
}

uint64_t failed_requests(c10::Device device) {
  if (device.is_cpu()) return allocator().failures();
  device = with_index(device);
  const auto stats = c10::getDeviceAllocator(device.type())->getDeviceStats(device.index());
  return static_cast<uint64_t>(stats.num_ooms) + internal::device::refused_requests(device);
}

uint64_t cpu_allocation_serial() { return allocator().serial(); }
uint64_t cpu_allocation_serial(const void* data) { return allocator().serial(data); }

namespace internal::device {

bool works_for_measuring() {
  return c10::ThreadLocalDebugInfo::get(measuring_mark()) != nullptr;
}
void count_cpu_memory_apart() { allocator().count_apart(); }
void count_cpu_memory_together() { allocator().count_together(); }

int64_t take_recent_peak(c10::Device device) {
  return device.is_cpu() ? allocator().take_recent_peak() : take_recent_device_peak(device);
}

}  // namespace internal::device

}  // namespace reprise::runtime
