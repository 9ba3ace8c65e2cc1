#include "simulated_heap.h"

#include "runtime/device/device_heap.h"
#include "runtime/device/served_blocks.h"
#include "support/accelerator/accelerator.h"

namespace reprise::runtime::testing {
namespace {

using internal::device::DeviceHeap;
using internal::device::ServedBlocks;

ServedBlocks& served() {
  static auto* const instance = new ServedBlocks;
  return *instance;
}

// The devices ask for the blocks of a source.
class Server final : public sim::BlockServer {
 public:
  void* take(size_t bytes, int device) override {
    return served().take(bytes, sim::device(device));
  }
  bool give_back(void* front) override { return served().give_back(front); }
};

// The runtime asks for memory past the sources.
class Heap final : public DeviceHeap {
 public:
  void* take(int64_t bytes, c10::Device device) override {
    return sim::take_own_memory(device.index(), static_cast<size_t>(bytes));
  }
  void give_back(void* data) override { sim::give_back_own_memory(data); }
  c10::DataPtr own(const std::shared_ptr<BlockSource>& source, void* data, int64_t bytes,
                   c10::Device device) override {
    served().own(source, data, bytes);
    return {data, data, c10::GetAllocator(device.type())->raw_deleter(), device};
  }
};

}  // namespace

void install_simulated_heap() {
  static auto* const heap = new Heap;
  static auto* const server = new Server;
  sim::set_block_server(server);
  internal::device::register_heap(sim::device().type(), *heap);
}

}  // namespace reprise::runtime::testing
