#include "plan/place/lanes.h"

#include <algorithm>
#include <limits>

namespace reprise::internal::place {

std::vector<Lane> lanes_of(const Machine& machine) {
  std::vector<Lane> lanes;
  for (size_t m = 1; m < machine.memories.size(); ++m) {
    const auto memory = static_cast<int32_t>(m);
    const int32_t out = find_channel(machine, 0, memory), in = find_channel(machine, memory, 0);
    if (out < 0 || in < 0) continue;
    const std::optional<Bytes>& capacity = machine.memories[m].capacity;
    lanes.push_back(
        {.memory = memory,
         .out = out,
         .in = in,
         .out_queue = queue_of(machine, out),
         .in_queue = queue_of(machine, in),
         .capacity = capacity ? capacity->count() : std::numeric_limits<int64_t>::max()});
  }
  const auto bandwidth = [&](const Lane& lane) {
    return std::min(machine.channels[lane.out].bytes_per_second,
                    machine.channels[lane.in].bytes_per_second);
  };
  std::stable_sort(lanes.begin(), lanes.end(),
                   [&](const Lane& a, const Lane& b) { return bandwidth(a) > bandwidth(b); });
  return lanes;
}

namespace {

std::vector<int32_t> memories_of(const std::vector<Lane>& lanes) {
  std::vector<int32_t> memories;
  for (const Lane& lane : lanes) memories.push_back(lane.memory);
  return memories;
}

}  // namespace

LaneTimes::LaneTimes(const Graph& graph, const Machine& machine)
    : machine_(machine),
      lanes_(lanes_of(machine)),
      homes_(graph, machine, memories_of(lanes_)) {
  for (const Lane& lane : lanes_) {
    std::vector<int64_t>& out = out_.emplace_back();
    std::vector<int64_t>& in = in_.emplace_back();
    for (const Value& value : graph.values) {
      out.push_back(copy_time(machine.channels[lane.out], value.bytes).count());
      in.push_back(copy_time(machine.channels[lane.in], value.bytes).count());
    }
  }
}

}  // namespace reprise::internal::place
