// These are CUDA graphs.
#pragma once

#include "runtime/device/device_graph.h"

namespace reprise::runtime::internal::device {

// These are the functions of device_graph.h for CUDA devices.
void prepare_cuda_graphs(c10::Device device);
std::unique_ptr<DeviceGraph> record_cuda_graph(c10::Device device,
                                               const std::function<void()>& function);

}  // namespace reprise::runtime::internal::device
