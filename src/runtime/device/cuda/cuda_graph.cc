#include "runtime/device/cuda/cuda_graph.h"

#include <ATen/cuda/CUDAGraph.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/ones.h>
#include <c10/core/Event.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <map>
#include <mutex>
#include <utility>

#include "reprise/runtime/allocator.h"

namespace reprise::runtime::internal::device {
namespace {

using c10::cuda::CUDAStream;
using c10::cuda::CUDAStreamGuard;

// Graphs cannot be recorded on the default stream. Libraries keep memory for each stream that they
// have worked on, so all graphs of a device are recorded on the same one.
CUDAStream recording_stream(c10::Device device) {
  static std::mutex mutex;
  static std::map<c10::DeviceIndex, CUDAStream> known;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = known.find(device.index());
  if (found != known.end()) return found->second;
  return known.emplace(device.index(), c10::cuda::getStreamFromPool(false, device.index()))
      .first->second;
}

// Lets a stream wait for what another one has been given so far.
void let_wait(CUDAStream stream, CUDAStream other) {
  c10::Event event(c10::kCUDA);
  event.record(other);
  event.block(stream);
}

class CudaGraph final : public DeviceGraph {
 public:
  void record(c10::Device device, const std::function<void()>& function) {
    {
      // The generator takes memory for its state, which stays as long as the graph.
      const BlockSourceScope heap(nullptr, device);
      // Other threads may go on working with the device.
      graph_.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
    }
    try {
      function();
    } catch (...) {
      end_in_vain(device);
      throw;
    }
    const BlockSourceScope heap(nullptr, device);
    graph_.capture_end();
  }
  void replay() override { graph_.replay(); }

 private:
  // The graph is of no use, but the stream must leave its recording state.
  void end_in_vain(c10::Device device) noexcept {
    try {
      const BlockSourceScope heap(nullptr, device);
      graph_.capture_end();
    } catch (...) {
      cudaGetLastError();  // It would be reported again by the next call otherwise.
    }
  }

  at::cuda::CUDAGraph graph_;
};

}  // namespace

void prepare_cuda_graphs(c10::Device device) {
  static std::mutex mutex;
  static std::map<c10::DeviceIndex, bool> ready;
  const std::lock_guard<std::mutex> lock(mutex);
  if (std::exchange(ready[device.index()], true)) return;
  const CUDAStream stream = recording_stream(device),
                   now = c10::cuda::getCurrentCUDAStream(device.index());
  const CUDAStreamGuard guard(stream);
  let_wait(stream, now);
  // cuBLAS takes its workspace at the first product on a stream.
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor square = at::ones({64, 64}, at::TensorOptions(device).dtype(type));
    at::addmm(at::ones({64}, square.options()), square, square);
  }
  let_wait(now, stream);
}

std::unique_ptr<DeviceGraph> record_cuda_graph(c10::Device device,
                                               const std::function<void()>& function) {
  const CUDAStream stream = recording_stream(device),
                   now = c10::cuda::getCurrentCUDAStream(device.index());
  auto graph = std::make_unique<CudaGraph>();
  const CUDAStreamGuard guard(stream);
  let_wait(stream, now);
  graph->record(device, function);
  return graph;
}

}  // namespace reprise::runtime::internal::device
