// This is a simulated accelerator for tests, on LibTorch's device type PrivateUse1. Its name is
// `sim`.
//
// It answers one question on machines without a GPU: does a program treat a device as a device? Host
// code cannot touch the memory of a device, memory is limited, copies land as late as a correct
// program allows, and every access that no stream, event or wait orders is reported. Results have
// the CPU's bits, because the kernels are the CPU's. README.md says how it works and what it lacks.
#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace sim {

// Speed says how long things take on the simulated clock. These rates and durations are those of no
// real device.
struct Speed {
  int64_t launch_ns = 1'000;              // the host's time for one kernel, copy or question
  int64_t kernel_ns = 2'000;              // of each kernel, beside the bytes that it touches
  int64_t copy_ns = 5'000;                // of each copy, beside its bytes
  double kernel_bytes_per_second = 2e11;  // memory of a device
  double copy_bytes_per_second = 1e10;    // each direction of each device
  bool operator==(const Speed&) const = default;
};

struct Options {
  int devices = 2;
  size_t capacity = size_t{1} << 30;  // bytes of each device
  size_t granule = 512;               // bytes; a power of two, at least 64
  size_t pinned_capacity = size_t{1} << 30;
  Speed speed = {};
  bool poison = true;          // new and freed memory is full of numbers that are NaN
  bool check_order = true;     // reports accesses that nothing orders
  bool check_operands = true;  // kernels refuse operands that lie on the host
  bool operator==(const Options&) const = default;
};

// Registers the devices. The first call of a process counts; a later one with other options throws
// c10::Error. Call it after whoever else replaces the CPU's allocator, and before the first
// backward() of the process, because autograd then counts the devices once.
void install(const Options& options = {});
bool installed();

inline c10::Device device(int index = 0) {
  return {c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(index)};
}

// --- Memory ---------------------------------------------------------------------------------------
// At most what install() was given. Blocks that exist stay, even if they are more than that.
void set_capacity(int device, size_t bytes);
size_t capacity(int device);

// The allocation with this number fails on the device. 1 is the next allocation, and 0 stands for none.
void fail_allocation(int device, uint64_t number);

// A BlockServer serves requests in place of the devices' own memory: another allocator, which puts
// blocks to places of its own inside a block that it took with take_own_memory(). The device's
// statistics count its blocks no further.
class BlockServer {
 public:
  virtual ~BlockServer() = default;
  // Returns a front address in the device's memory, or null to leave the request to the device.
  virtual void* take(size_t bytes, int device) = 0;
  // Returns false if the block is not one of its own.
  virtual bool give_back(void* front) = 0;
};
// There is one server at most; null: none. It must live as long as its blocks.
void set_block_server(BlockServer* server);
// Take and give back memory of the device itself. The first function throws c10::OutOfMemoryError.
void* take_own_memory(int device, size_t bytes);
void give_back_own_memory(void* front);

// --- Time -----------------------------------------------------------------------------------------
// The simulated clock of the host. Launches move it on, and waiting moves it to the end of what was
// waited for. It depends on the calls alone, so that every run shows the same times.
int64_t host_time_ns();

// BusyTimes say how long kernels ran on the device so far, and how long copies from and to the host
// ran.
struct BusyTimes {
  int64_t kernels_ns = 0, to_device_ns = 0, to_host_ns = 0;
  bool operator==(const BusyTimes&) const = default;
};
BusyTimes busy_times(int device);

// --- What the check found ---------------------------------------------------------------------------
// The reports since the last call, each a sentence that names both accesses and what is missing.
std::vector<std::string> take_reports();

// --- What happened so far -------------------------------------------------------------------------
struct Counters {
  uint64_t kernels = 0;         // calls of kernels, views not among them
  uint64_t adopted = 0;         // results whose memory the kernel itself took on the device
  uint64_t copied_results = 0;  // results that had to be copied to the device
  uint64_t queued_copies = 0;   // copies that did not hold up the host
  bool operator==(const Counters&) const = default;
};
Counters counters();

}  // namespace sim
