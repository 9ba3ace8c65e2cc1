// A graph of a device holds all kernels of a piece of code, and the device starts them with one
// request. On CUDA these are CUDA graphs.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <memory>

namespace reprise::runtime::internal::device {

// A DeviceGraph is replayed in the order of this thread's current stream. Kernels read and write the
// addresses that they had when the graph was recorded, and random numbers go on from the state of
// the device's generator. The memory at the addresses is the caller's.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  virtual void replay() = 0;
};

// Says whether steps on the device can be recorded as graphs.
bool has_graphs(c10::Device device);

// Makes the device's libraries ready for recording, so that none of them takes lasting memory while
// a graph is recorded (the workspaces of matrix products). Repeated calls do nothing.
void prepare_graphs(c10::Device device);

// Calls the function and records the work that it gives the device. The device runs none of this
// work. Throws what the function throws, and c10::Error for work that cannot be recorded, such as
// waiting for the device.
std::unique_ptr<DeviceGraph> record_graph(c10::Device device,
                                          const std::function<void()>& function);

}  // namespace reprise::runtime::internal::device
