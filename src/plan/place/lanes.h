// Lanes are the ways out of the device and back that a machine offers to a plan.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/place/homes.h"
#include "reprise/model/graph.h"
#include "reprise/model/machine.h"

namespace reprise::internal::place {

// A Lane is a memory with a channel from the device and one back.
struct Lane {
  int32_t memory = 0;
  int32_t out = 0, in = 0;              // channels
  int32_t out_queue = 0, in_queue = 0;  // equal for half duplex
  int64_t capacity = 0;                 // bytes
};

// Lists the lanes of a machine, those with the largest bandwidth first. A memory that no channel
// joins with the device directly has none: plans of this room do not send values on from one memory
// behind the device to another.
std::vector<Lane> lanes_of(const Machine& machine);

inline constexpr int8_t kStays = -1;  // in place of a lane: the value stays on the device

// LaneTimes says how long each value of a graph takes on each lane, and which ones live behind a lane
// between steps. The graph has its homes, and must outlive this object, as must the machine.
class LaneTimes {
 public:
  LaneTimes(const Graph& graph, const Machine& machine);

  const Machine& machine() const { return machine_; }
  const std::vector<Lane>& lanes() const { return lanes_; }
  int64_t out_time(size_t lane, ValueIndex value) const { return out_[lane][value]; }
  const HomeGroups& homes() const { return homes_; }
  int64_t in_time(size_t lane, ValueIndex value) const { return in_[lane][value]; }

 private:
  const Machine& machine_;
  std::vector<Lane> lanes_;
  HomeGroups homes_;
  std::vector<std::vector<int64_t>> out_, in_;  // by lane and value, in nanoseconds
};

}  // namespace reprise::internal::place
