// Finds the shortest ways between the memories of a machine, for one value.
#pragma once

#include <cstdint>
#include <vector>

#include "reprise/model/graph.h"
#include "reprise/model/machine.h"

namespace reprise::internal::devices {

inline constexpr int64_t kNoWay = int64_t{1} << 60;

// Routes are the ways of a value from one memory to another, by latencies and bandwidths alone.
class Routes {
 public:
  // Computes the ways of all values. The cost is O(sizes * memories^3).
  Routes(const Graph& graph, const Machine& machine);

  // Returns the least time of the copies from one memory to another; kNoWay if there is no way.
  int64_t time(ValueIndex value, int32_t from, int32_t to) const {
    return ways(value)[static_cast<size_t>(from) * memories_ + static_cast<size_t>(to)].time;
  }
  // Returns the memory that the first of these copies goes to.
  int32_t next(ValueIndex value, int32_t from, int32_t to) const {
    return ways(value)[static_cast<size_t>(from) * memories_ + static_cast<size_t>(to)].next;
  }

 private:
  struct Way {
    int64_t time = kNoWay;
    int32_t next = -1;
  };

  const std::vector<Way>& ways(ValueIndex value) const { return ways_[size_of_[value]]; }

  size_t memories_;
  std::vector<int32_t> size_of_;        // by value: the position of its size
  std::vector<std::vector<Way>> ways_;  // by size, from and to
};

}  // namespace reprise::internal::devices
