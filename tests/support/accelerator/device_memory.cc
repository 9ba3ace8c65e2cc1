#include "device_memory.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>

#include "streams.h"

namespace sim {
namespace {

// Patterns that are NaN in every type of floating-point numbers with at least 16 bits.
constexpr uint16_t kNew = 0xFFFF;
constexpr uint16_t kFreed = 0xFFF5;

const auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);

std::vector<std::unique_ptr<DeviceMemory>>& memories() {
  static auto* all = new std::vector<std::unique_ptr<DeviceMemory>>;
  return *all;
}

std::atomic<BlockServer*> block_server = nullptr;

std::vector<c10::CachingAllocator::StatArray*> used_stats(
    c10::CachingDeviceAllocator::DeviceStats& stats) {
  return {&stats.allocation,     &stats.active,       &stats.allocated_bytes,
          &stats.reserved_bytes, &stats.active_bytes, &stats.requested_bytes};
}

}  // namespace

DeviceMemory::DeviceMemory(int index, const Options& options)
    : index_(index),
      granule_(options.granule),
      poison_(options.poison),
      pages_(options.capacity, DoubleMapping::Front::kForbidden),
      holes_(pages_.bytes()),
      capacity_(options.capacity) {}

void DeviceMemory::fill(size_t offset, size_t bytes, uint16_t pattern) {
  if (!poison_) return;
  auto* const words = reinterpret_cast<uint16_t*>(pages_.back() + offset);
  std::fill(words, words + bytes / sizeof(uint16_t), pattern);
}

void DeviceMemory::refuse(size_t requested, size_t bytes, bool on_purpose) {
  stats_.num_ooms += 1;
  const std::string why =
      on_purpose ? "this allocation was told to fail"
      : live_ + waiting_bytes_ + bytes > capacity_
          ? "free something, or raise the capacity"
          : "the largest hole has " + std::to_string(holes_.largest()) + " bytes";
  C10_THROW_ERROR(OutOfMemoryError, "sim:" + std::to_string(index_) +
                                        " is out of memory: " + std::to_string(requested) +
                                        " bytes were requested, " + std::to_string(live_) + " of " +
                                        std::to_string(capacity_) + " bytes are allocated; " + why);
}

char* DeviceMemory::take(size_t requested) {
  BlockServer* const server = block_server.load();
  void* const served = server != nullptr ? server->take(requested, index_) : nullptr;
  if (served == nullptr) return take_own(requested);
  auto* const front = static_cast<char*>(served);
  fill(static_cast<size_t>(front - pages_.front()), requested, kNew);
  return front;
}

void DeviceMemory::give_back(void* front) {
  BlockServer* const server = block_server.load();
  if (server == nullptr || !server->give_back(front)) give_back_own(front);
}

char* DeviceMemory::take_own(size_t requested) {
  const size_t bytes = (std::max<size_t>(requested, 1) + granule_ - 1) / granule_ * granule_;
  const int stream = current_stream(index_);
  std::lock_guard<std::mutex> lock(mutex_);
  if (fail_in_ > 0 && --fail_in_ == 0) refuse(requested, bytes, true);
  collect_waiting(false);
  std::optional<size_t> offset;
  for (const bool land_copies : {false, true}) {
    if (land_copies) {
      if (waiting_.empty()) break;
      stats_.num_alloc_retries += 1;
      collect_waiting(true);
    }
    if (live_ + waiting_bytes_ + bytes <= capacity_) offset = holes_.take(bytes);
    if (offset) break;
  }
  if (!offset) refuse(requested, bytes, false);
  blocks_[*offset] = {bytes, requested, stream, {}};
  live_ += bytes;
  stats_.allocation[kAll].increase(1);
  stats_.active[kAll].increase(1);
  stats_.allocated_bytes[kAll].increase(bytes);
  stats_.active_bytes[kAll].increase(bytes);
  stats_.reserved_bytes[kAll].increase(bytes);
  stats_.requested_bytes[kAll].increase(requested);
  fill(*offset, bytes, kNew);
  return pages_.front() + *offset;
}

void DeviceMemory::give_back_own(void* front) {
  const auto offset = static_cast<size_t>(static_cast<char*>(front) - pages_.front());
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = blocks_.find(offset);
  TORCH_INTERNAL_ASSERT(found != blocks_.end(), "sim: no block begins at the freed address");
  Block block = std::move(found->second);
  blocks_.erase(found);
  char* const begin = pages_.front() + offset;
  streams().check().freed(begin, begin + block.bytes, block.stream, block.named);
  live_ -= block.bytes;
  stats_.allocation[kAll].decrease(1);
  stats_.allocated_bytes[kAll].decrease(block.bytes);
  stats_.requested_bytes[kAll].decrease(block.requested);
  Waiting waiting{offset, block.bytes, {}};
  block.named.insert(block.stream);
  for (const int stream : block.named) {
    const uint64_t last = streams().last_ticket(stream);
    if (!streams().has_landed(stream, last)) waiting.until.emplace_back(stream, last);
  }
  if (waiting.until.empty()) {
    make_free(offset, block.bytes);
  } else {
    waiting_bytes_ += block.bytes;
    waiting_.push_back(std::move(waiting));
  }
}

void DeviceMemory::make_free(size_t offset, size_t bytes) {
  fill(offset, bytes, kFreed);
  stats_.active[kAll].decrease(1);
  stats_.active_bytes[kAll].decrease(bytes);
  stats_.reserved_bytes[kAll].decrease(bytes);
  holes_.give_back(offset, bytes);
}

void DeviceMemory::collect_waiting(bool land_copies) {
  std::erase_if(waiting_, [&](const Waiting& each) {
    for (const auto& [stream, ticket] : each.until) {
      if (land_copies) streams().land(stream, ticket);
      if (!streams().has_landed(stream, ticket)) return false;
    }
    waiting_bytes_ -= each.bytes;
    make_free(each.offset, each.bytes);
    return true;
  });
}

void DeviceMemory::record_stream(void* front, int stream) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto block = blocks_.find(static_cast<size_t>(static_cast<char*>(front) - pages_.front()));
  if (block != blocks_.end()) block->second.named.insert(stream);
}

c10::CachingDeviceAllocator::DeviceStats DeviceMemory::stats() {
  std::lock_guard<std::mutex> lock(mutex_);
  return stats_;
}
void DeviceMemory::reset_peak() {
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto* const stat : used_stats(stats_)) (*stat)[kAll].reset_peak();
}
void DeviceMemory::reset_accumulated() {
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto* const stat : used_stats(stats_)) (*stat)[kAll].reset_accumulated();
  stats_.num_ooms = stats_.num_alloc_retries = 0;
}
size_t DeviceMemory::live() {
  std::lock_guard<std::mutex> lock(mutex_);
  return live_;
}
size_t DeviceMemory::capacity() {
  std::lock_guard<std::mutex> lock(mutex_);
  return capacity_;
}
void DeviceMemory::set_capacity(size_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  capacity_ = std::min(bytes, pages_.bytes());
}
void DeviceMemory::fail_allocation(uint64_t number) {
  std::lock_guard<std::mutex> lock(mutex_);
  fail_in_ = number;
}

void set_block_server(BlockServer* server) { block_server.store(server); }
void* take_own_memory(int device, size_t bytes) { return memory(device).take_own(bytes); }
void give_back_own_memory(void* front) { memory_with_front(front)->give_back_own(front); }

void make_memories(const Options& options) {
  for (int d = 0; d < options.devices; ++d) {
    memories().push_back(std::make_unique<DeviceMemory>(d, options));
  }
}
DeviceMemory& memory(int device) {
  TORCH_CHECK(device >= 0 && static_cast<size_t>(device) < memories().size(),
              "sim: no device sim:", device);
  return *memories()[static_cast<size_t>(device)];
}
DeviceMemory* memory_with_front(const void* address) {
  for (const auto& each : memories()) {
    if (each->pages().in_front(address)) return each.get();
  }
  return nullptr;
}
DeviceMemory* memory_with_back(const void* address) {
  for (const auto& each : memories()) {
    if (each->pages().in_back(address)) return each.get();
  }
  return nullptr;
}

}  // namespace sim
