#include "runtime/device/parallel.h"

#include <ATen/ATen.h>
#include <ATen/TensorIterator.h>

namespace reprise::runtime::internal::device {

void parallel_ranges(int64_t count, int64_t grain,
                     const std::function<void(int64_t begin, int64_t end)>& work) {
  if (count <= 0) return;
  // The loop gets addresses. Nobody reads what is there, so that one byte stands for all elements.
  char first = 0;
  const at::Tensor places = at::from_blob(&first, {count}, at::TensorOptions(at::kByte));
  at::TensorIteratorConfig config;
  config.set_check_mem_overlap(false).check_all_same_dtype(false).resize_outputs(false);
  config.add_owned_output(places);
  at::TensorIterator iterator = config.build();
  iterator.for_each(
      [&](char** addresses, const int64_t*, int64_t elements, int64_t rows) {
        const int64_t begin = addresses[0] - &first;
        work(begin, begin + elements * rows);
      },
      grain);
}

}  // namespace reprise::runtime::internal::device
