#include "runtime/device/request_limit.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <string>

#include "reprise/runtime/allocator.h"
#include "runtime/device/device_heap.h"
#include "runtime/device/room.h"

namespace reprise::runtime {
namespace internal::device {
namespace {

constexpr int64_t kNone = -1;
constexpr size_t kMostDevices = 64;  // LibTorch's own limit for CUDA

struct Limit {
  std::atomic<int64_t> bytes = kNone;
  std::atomic<uint64_t> refused = 0;
  std::atomic<int64_t> recent_peak = 0;
};
std::array<Limit, kMostDevices> by_index;

// Processes use one kind of accelerator.
Limit& limit_of(c10::Device device) {
  return by_index[static_cast<size_t>(std::max<int>(0, device.index())) % kMostDevices];
}

std::atomic<Refusal> refusal = nullptr;

}  // namespace

bool has_limits(c10::Device device) { return has_arenas(device); }

void set_device_limit(std::optional<int64_t> bytes, c10::Device device) {
  limit_of(device).bytes.store(bytes ? std::max<int64_t>(0, *bytes) : kNone);
}

std::optional<int64_t> device_limit(c10::Device device) {
  const int64_t bytes = limit_of(device).bytes.load();
  return bytes == kNone ? std::nullopt : std::optional(bytes);
}

uint64_t refused_requests(c10::Device device) { return limit_of(device).refused.load(); }

int64_t take_recent_device_peak(c10::Device device) {
  return limit_of(device).recent_peak.exchange(memory_count(device).live);
}

void admit(int64_t bytes, c10::Device device) {
  const std::optional<int64_t> limit = device_limit(device);
  if (!limit) return;
  Limit& state = limit_of(device);
  DeviceHeap& heap = *heap_of(device);
  int64_t live = heap.limited_bytes(device);
  std::string held;
  if (live + bytes > *limit) {
    if (RoomMaker* const maker = room_maker()) {
      held = maker->make_room(live + bytes - *limit);
      live = heap.limited_bytes(device);
    }
  }
  if (live + bytes > *limit) {
    ++state.refused;
    throw_refused(refused_request(*limit, live, bytes, held));
  }
  state.recent_peak.store(std::max(state.recent_peak.load(), live + bytes));
}

BudgetError refused_request(int64_t limit, int64_t live, int64_t bytes, const std::string& held) {
  return {"the budget of " + std::to_string(limit) + " bytes is exceeded: " +
              std::to_string(live) + " bytes are live and " + std::to_string(bytes) +
              " more were requested" + (held.empty() ? "" : "; " + held),
          limit, live, bytes};
}

void throw_refused(const BudgetError& error) {
  if (const Refusal instead = refusal.load()) instead(error);
  throw error;
}

}  // namespace internal::device

void set_refusal(Refusal instead) { internal::device::refusal.store(instead); }

}  // namespace reprise::runtime
