#include "accelerator.h"

#include <c10/util/Exception.h>

#include <mutex>
#include <optional>

#include "allocators.h"
#include "backend.h"
#include "device_memory.h"
#include "faults.h"
#include "kernels.h"
#include "operands.h"
#include "pinned_memory.h"
#include "streams.h"

namespace sim {
namespace {

std::mutex install_mutex;
std::optional<Options> installed_options;

void check_options(const Options& options) {
  TORCH_CHECK(options.devices >= 1 && options.devices <= 16, "sim: Options::devices is ",
              options.devices, "; it may be 1 to 16");
  TORCH_CHECK(options.granule >= 64 && (options.granule & (options.granule - 1)) == 0,
              "sim: Options::granule is ", options.granule,
              "; it has to be a power of two, at least 64");
  TORCH_CHECK(options.capacity > 0 && options.pinned_capacity > 0,
              "sim: Options::capacity and Options::pinned_capacity have to be more than 0 bytes");
  TORCH_CHECK(options.speed.kernel_bytes_per_second > 0 && options.speed.copy_bytes_per_second > 0,
              "sim: rates of Options::speed have to be more than 0 bytes a second");
}

}  // namespace

void install(const Options& options) {
  const std::lock_guard<std::mutex> lock(install_mutex);
  TORCH_CHECK(!installed_options || *installed_options == options,
              "sim: the devices are installed with other options; a process has one set of them");
  if (installed_options) return;
  check_options(options);
  make_streams(options, [] { pinned_memory().open_finished(); });
  make_memories(options);
  make_pinned_memory(options);
  register_device_allocator();
  register_backend();
  register_factories();
  register_copies();
  register_kernels(options.check_operands);
  route_cpu_allocator();
  install_fault_handler();
  installed_options = options;
}

bool installed() {
  const std::lock_guard<std::mutex> lock(install_mutex);
  return installed_options.has_value();
}

void set_capacity(int device, size_t bytes) { memory(device).set_capacity(bytes); }
size_t capacity(int device) { return memory(device).capacity(); }
void fail_allocation(int device, uint64_t number) { memory(device).fail_allocation(number); }

int64_t host_time_ns() { return streams().host_time_ns(); }
BusyTimes busy_times(int device) { return streams().busy_times(device); }

std::vector<std::string> take_reports() {
  pinned_memory().open_finished();
  return streams().check().take();
}

Counters counters() {
  return {.kernels = kernels_called(),
          .adopted = adopted_results(),
          .copied_results = copied_results(),
          .queued_copies = streams().queued_copies()};
}

}  // namespace sim
