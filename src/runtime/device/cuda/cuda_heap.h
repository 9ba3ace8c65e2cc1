// This is the allocator of CUDA devices, with a front that lets arenas serve blocks. This folder is
// compiled where LibTorch is built for CUDA and CUDA's headers are found.
#pragma once

#include "runtime/device/device_heap.h"

namespace reprise::runtime::internal::device {

// Returns the heap of all CUDA devices. The first call puts the front before LibTorch's allocator,
// where it stays. It passes everything on but the requests of a thread that a BlockSource serves. The
// function is thread-safe.
DeviceHeap& cuda_heap();

}  // namespace reprise::runtime::internal::device
