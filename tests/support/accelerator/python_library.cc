// Gives the devices to Python, as operators of the library `sim`, which python/sim.py wraps.
#include <ATen/Context.h>
#include <torch/library.h>

#include <string>
#include <vector>

#include "accelerator.h"

namespace {

void install(int64_t devices, int64_t capacity, int64_t granule) {
  sim::Options options;
  options.devices = static_cast<int>(devices);
  options.capacity = static_cast<size_t>(capacity);
  options.granule = static_cast<size_t>(granule);
  sim::install(options);
}

std::vector<int64_t> counters() {
  const sim::Counters now = sim::counters();
  return {static_cast<int64_t>(now.kernels), static_cast<int64_t>(now.adopted),
          static_cast<int64_t>(now.copied_results), static_cast<int64_t>(now.queued_copies)};
}

at::Generator generator(int64_t device) {
  return at::globalContext().defaultGenerator(sim::device(static_cast<int>(device)));
}

}  // namespace

TORCH_LIBRARY(sim, library) {
  library.def("install(int devices, int capacity, int granule) -> ()", &install);
  library.def("set_capacity(int device, int bytes) -> ()", [](int64_t device, int64_t bytes) {
    sim::set_capacity(static_cast<int>(device), static_cast<size_t>(bytes));
  });
  library.def("fail_allocation(int device, int number) -> ()", [](int64_t device, int64_t number) {
    sim::fail_allocation(static_cast<int>(device), static_cast<uint64_t>(number));
  });
  library.def("manual_seed(int device, int seed) -> ()", [](int64_t device, int64_t seed) {
    generator(device).set_current_seed(static_cast<uint64_t>(seed));
  });
  library.def("get_rng_state(int device) -> Tensor",
              [](int64_t device) { return generator(device).get_state(); });
  library.def("set_rng_state(int device, Tensor state) -> ()",
              [](int64_t device, const at::Tensor& state) { generator(device).set_state(state); });
  library.def("take_reports() -> str[]", [] { return sim::take_reports(); });
  library.def("host_time_ns() -> int", [] { return sim::host_time_ns(); });
  library.def("counters() -> int[]", &counters);
}
