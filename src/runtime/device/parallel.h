// These are loops on the threads of LibTorch.
#pragma once

#include <cstdint>
#include <functional>

namespace reprise::runtime::internal::device {

// Divides 0, 1, ..., count - 1 into ranges as ATen's element-wise kernels divide their elements, and
// calls `work` with the begin and the end of each range, on several threads. `grain` is the least
// size of a range; at::internal::GRAIN_SIZE is that of most kernels. Inside of `work`, kernels are
// serial if there are several ranges. An exception of `work` reaches the caller.
//
// at::parallel_for() is a template. In a file that is compiled without OpenMP, as all of ours are, it
// is a plain loop. OpenMP in our files would bring a second pool of threads, which knows nothing of
// LibTorch's. So this function hands its loop to a kernel of LibTorch.
void parallel_ranges(int64_t count, int64_t grain,
                     const std::function<void(int64_t begin, int64_t end)>& work);

}  // namespace reprise::runtime::internal::device
