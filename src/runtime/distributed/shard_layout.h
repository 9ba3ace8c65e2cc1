// Divides an optimizer's state among several processes.
#pragma once

#include <cstdint>
#include <vector>

namespace reprise::runtime::internal::distributed {

// Returns the rank that keeps each piece. `bytes` has the bytes of each piece.
//
// The largest piece that is left goes to the rank that has least so far, and to the lowest of equal
// ranks. So no rank has more than its part of all bytes and one piece (Graham, Bounds on
// Multiprocessing Timing Anomalies, 1969). All ranks find the same answer.
std::vector<int> shard_layout(const std::vector<int64_t>& bytes, int ranks);

}  // namespace reprise::runtime::internal::distributed
