#include "runtime/device/cuda/cuda_heap.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/version.h>

#include <functional>
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "runtime/device/device_heap.h"
#include "runtime/device/served_blocks.h"

namespace reprise::runtime::internal::device {
namespace {

namespace caching = c10::cuda::CUDACachingAllocator;
using c10::DeviceIndex;
using c10::MempoolId_t;
using caching::CUDAAllocator;

// Stands before LibTorch's allocator. The data pointer and the context pointer of each block are the
// same, as raw_allocate() demands; so are those of LibTorch's allocator.
class Front final : public CUDAAllocator {
 public:
  explicit Front(CUDAAllocator& behind) : behind_(behind) {}

  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device device(c10::kCUDA, c10::cuda::current_device());
    void* const data = served_.take(bytes, device);
    if (data == nullptr) return behind_.allocate(bytes);
    return {data, data, &release, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    behind_.copy_data(to, from, bytes);
  }
  void* raw_alloc(size_t bytes) override {
    void* const data = served_.take(bytes, {c10::kCUDA, c10::cuda::current_device()});
    return data != nullptr ? data : behind_.raw_alloc(bytes);
  }
  void raw_delete(void* data) override {
    if (!served_.give_back(data)) behind_.raw_delete(data);
  }

  // The functions below pass their calls on.
  bool initialized() override { return behind_.initialized(); }
  void emptyCache(MempoolId_t pool) override { behind_.emptyCache(pool); }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex device) override {
    return behind_.getDeviceStats(device);
  }
  void resetAccumulatedStats(DeviceIndex device) override { behind_.resetAccumulatedStats(device); }
  void resetPeakStats(DeviceIndex device) override { behind_.resetPeakStats(device); }
  std::pair<size_t, size_t> getMemoryInfo(DeviceIndex device) override {
    return behind_.getMemoryInfo(device);
  }
  void* raw_alloc_with_stream(size_t bytes, cudaStream_t stream) override {
    return behind_.raw_alloc_with_stream(bytes, stream);
  }
  void init(int devices) override { behind_.init(devices); }
  double getMemoryFraction(DeviceIndex device) override {
    return behind_.getMemoryFraction(device);
  }
  void setMemoryFraction(double fraction, DeviceIndex device) override {
    behind_.setMemoryFraction(fraction, device);
  }
  std::vector<caching::StreamSegmentSize> getExpandableSegmentSizes(DeviceIndex device) override {
    return behind_.getExpandableSegmentSizes(device);
  }
  void enable(bool value) override { behind_.enable(value); }
  bool isEnabled() const override { return behind_.isEnabled(); }
  void cacheInfo(DeviceIndex device, size_t* largest) override {
    behind_.cacheInfo(device, largest);
  }
  void* getBaseAllocation(void* data, size_t* size) override {
    return behind_.getBaseAllocation(data, size);
  }
  void recordStream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) override {
    behind_.recordStream(data, stream);  // Blocks that a deleter of ours frees are left out there.
  }
  caching::SnapshotInfo snapshot(MempoolId_t pool, bool include_traces) override {
    return behind_.snapshot(pool, include_traces);
  }
  void beginAllocateToPool(DeviceIndex device, MempoolId_t pool,
                           std::function<bool(cudaStream_t)> filter) override {
    behind_.beginAllocateToPool(device, pool, std::move(filter));
  }
  void endAllocateToPool(DeviceIndex device, MempoolId_t pool) override {
    behind_.endAllocateToPool(device, pool);
  }
  void releasePool(DeviceIndex device, MempoolId_t pool) override {
    behind_.releasePool(device, pool);
  }
  int getPoolUseCount(DeviceIndex device, MempoolId_t pool) override {
    return behind_.getPoolUseCount(device, pool);
  }
  void createOrIncrefPool(DeviceIndex device, MempoolId_t pool,
                          std::shared_ptr<CUDAAllocator> allocator) override {
    behind_.createOrIncrefPool(device, pool, std::move(allocator));
  }
  void setUseOnOOM(DeviceIndex device, MempoolId_t pool, bool use) override {
    behind_.setUseOnOOM(device, pool, use);
  }
  void setNoSplit(DeviceIndex device, MempoolId_t pool) override {
    behind_.setNoSplit(device, pool);
  }
  bool checkPoolLiveAllocations(DeviceIndex device, MempoolId_t pool,
                                const std::unordered_set<void*>& expected) override {
    return behind_.checkPoolLiveAllocations(device, pool, expected);
  }
  caching::ShareableHandle shareIpcHandle(void* data) override {
    return behind_.shareIpcHandle(data);
  }
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override {
    return behind_.getIpcDevPtr(std::move(handle));
  }
  bool isHistoryEnabled() override { return behind_.isHistoryEnabled(); }
  void recordHistory(bool enabled, caching::CreateContextFn recorder, size_t most,
                     caching::RecordContext when, bool clear,
                     const std::vector<std::string>& skipped) override {
    behind_.recordHistory(enabled, recorder, most, when, clear, skipped);
  }
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& data) override {
    behind_.recordAnnotation(data);
  }
  void pushCompileContext(std::string& data) override { behind_.pushCompileContext(data); }
  void popCompileContext() override { behind_.popCompileContext(); }
  void setUserMetadata(const std::string& data) override { behind_.setUserMetadata(data); }
  std::string getUserMetadata() override { return behind_.getUserMetadata(); }
  void attachOutOfMemoryObserver(caching::OutOfMemoryObserver observer) override {
    behind_.attachOutOfMemoryObserver(std::move(observer));
  }
  void attachAllocatorTraceTracker(caching::AllocatorTraceTracker tracker) override {
    behind_.attachAllocatorTraceTracker(std::move(tracker));
  }
  void enablePeerAccess(DeviceIndex device, DeviceIndex other) override {
    behind_.enablePeerAccess(device, other);
  }
  cudaError_t memcpyAsync(void* to, int to_device, const void* from, int from_device, size_t bytes,
                          cudaStream_t stream, bool peers) override {
    return behind_.memcpyAsync(to, to_device, from, from_device, bytes, stream, peers);
  }
  std::shared_ptr<caching::AllocatorState> getCheckpointState(DeviceIndex device,
                                                              MempoolId_t pool) override {
    return behind_.getCheckpointState(device, pool);
  }
  caching::CheckpointDelta setCheckpointPoolState(
      DeviceIndex device, std::shared_ptr<caching::AllocatorState> state) override {
    return behind_.setCheckpointPoolState(device, std::move(state));
  }
  std::string name() override { return behind_.name(); }
#if TORCH_VERSION_MINOR >= 12
  std::shared_ptr<c10::GatheredContext> getContextForPointer(const void* data) override {
    return behind_.getContextForPointer(data);
  }
  void attachOomRejectionObserver(caching::OomRejectionObserver observer) override {
    behind_.attachOomRejectionObserver(std::move(observer));
  }
#endif
#if TORCH_VERSION_MINOR >= 13
  void markCaptureBegin(DeviceIndex device) override { behind_.markCaptureBegin(device); }
  void markCaptureEnd(DeviceIndex device) override { behind_.markCaptureEnd(device); }
  c10::DataPtr allocateWithAddress(size_t bytes, void* address) override {
    return behind_.allocateWithAddress(bytes, address);
  }
#endif
#if TORCH_VERSION_MINOR >= 14
  bool supportsUserMetadata() override { return behind_.supportsUserMetadata(); }
  void annotateMemory(const void* data, const std::string& text) override {
    behind_.annotateMemory(data, text);
  }
#endif

  CUDAAllocator& behind() { return behind_; }
  c10::DataPtr own(const std::shared_ptr<BlockSource>& source, void* data, int64_t bytes,
                   c10::Device device) {
    served_.own(source, data, bytes);
    return {data, data, &release, device};
  }

 private:
  static void release(void* data);

  CUDAAllocator& behind_;
  ServedBlocks served_;
};

class CudaHeap final : public DeviceHeap {
 public:
  // Operators take memory from the first of the two, and the runtime takes it for values that come
  // back to the device from the second one.
  CudaHeap() : front_(*caching::allocator.load()) {
    caching::allocator.store(&front_);
    c10::SetAllocator(c10::kCUDA, &front_);
  }

  void* take(int64_t bytes, c10::Device device) override {
    const c10::cuda::CUDAGuard guard(device);
    return front_.behind().raw_alloc(static_cast<size_t>(bytes));
  }
  void give_back(void* data) override { front_.behind().raw_delete(data); }
  c10::DataPtr own(const std::shared_ptr<BlockSource>& source, void* data, int64_t bytes,
                   c10::Device device) override {
    return front_.own(source, data, bytes, device);
  }
  // The allocator leaves up to 1 MiB with a large block that it does not cut, and its statistics
  // count it as allocated. No plan knows these bytes, so a limit counts those that were asked for.
  int64_t limited_bytes(c10::Device device) override {
    const auto stats = front_.behind().getDeviceStats(device.index());
    const auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    const ArenaCount arenas = arena_count(device);
    return stats.requested_bytes[all].current - arenas.reserved + arenas.live;
  }
  Front& front() { return front_; }

 private:
  Front front_;
};

// Never destroyed: tensors of static lifetime give their memory back after main().
CudaHeap& heap() {
  static auto* const instance = new CudaHeap;
  return *instance;
}

void Front::release(void* data) { heap().front().raw_delete(data); }

}  // namespace

DeviceHeap& cuda_heap() { return heap(); }

}  // namespace reprise::runtime::internal::device
