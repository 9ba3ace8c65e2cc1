#include "runtime/device/dated_blocks.h"

#include <memory>
#include <mutex>
#include <unordered_map>

#include "runtime/device/device_heap.h"

namespace reprise::runtime::internal::device {
namespace {

// Passes requests on to the device's own allocator, and numbers the blocks.
class DatedBlocks final : public BlockSource {
 public:
  explicit DatedBlocks(c10::Device device) : device_(device) {}

  void* take(int64_t bytes) override {
    void* const data = heap_of(device_)->take(bytes, device_);
    const std::lock_guard<std::mutex> lock(mutex_);
    serials_[data] = ++last_;
    return data;
  }
  void give_back(void* data, int64_t) override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      serials_.erase(data);
    }
    heap_of(device_)->give_back(data);
  }

  uint64_t last() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return last_;
  }
  uint64_t of(const void* data) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = serials_.find(data);
    return found == serials_.end() ? 0 : found->second;
  }

 private:
  const c10::Device device_;
  std::mutex mutex_;
  uint64_t last_ = 0;
  std::unordered_map<const void*, uint64_t> serials_;
};

// Never destroyed: tensors of static lifetime give their memory back after main().
const std::shared_ptr<DatedBlocks>& dated_blocks(c10::Device device) {
  static std::mutex mutex;
  static auto* const known = new std::unordered_map<int, std::shared_ptr<DatedBlocks>>;
  const std::lock_guard<std::mutex> lock(mutex);
  std::shared_ptr<DatedBlocks>& blocks = (*known)[device.index()];
  if (!blocks) blocks = std::make_shared<DatedBlocks>(device);
  return blocks;
}

}  // namespace

DatedScope::DatedScope(c10::Device device) {
  if (!device.is_cpu() && has_arenas(device)) source_.emplace(dated_blocks(device), device);
}

uint64_t block_serial(c10::Device device) {
  if (device.is_cpu()) return cpu_allocation_serial();
  return has_arenas(device) ? dated_blocks(device)->last() : 0;
}

uint64_t block_serial(const c10::StorageImpl& storage) {
  if (storage.data() == nullptr) return 0;
  if (storage.device().is_cpu()) return cpu_allocation_serial(storage.data());
  return has_arenas(storage.device()) ? dated_blocks(storage.device())->of(storage.data()) : 0;
}

}  // namespace reprise::runtime::internal::device
