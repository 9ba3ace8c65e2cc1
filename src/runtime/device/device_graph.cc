#include "runtime/device/device_graph.h"

#include "reprise/model/errors.h"

#ifdef REPRISE_WITH_CUDA
#include "runtime/device/cuda/cuda_graph.h"
#endif

namespace reprise::runtime::internal::device {

bool has_graphs([[maybe_unused]] c10::Device device) {
#ifdef REPRISE_WITH_CUDA
  return device.is_cuda();
#else
  return false;
#endif
}

void prepare_graphs([[maybe_unused]] c10::Device device) {
#ifdef REPRISE_WITH_CUDA
  if (device.is_cuda()) prepare_cuda_graphs(device);
#endif
}

std::unique_ptr<DeviceGraph> record_graph([[maybe_unused]] c10::Device device,
                                          [[maybe_unused]] const std::function<void()>& function) {
#ifdef REPRISE_WITH_CUDA
  if (device.is_cuda()) return record_cuda_graph(device, function);
#endif
  throw InternalError("this device has no graphs");
}

}  // namespace reprise::runtime::internal::device
