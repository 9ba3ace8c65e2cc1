// Every persistent schedule of a small chain, one after the other, each costed by the simulator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "reprise/model/chain.h"

namespace reprise::testing {

struct PeakAndTime {
  int64_t peak = 0;
  int64_t time = 0;

  bool operator==(const PeakAndTime&) const = default;
};

// A persistent schedule is a series of forward passes. A pass starts at the last activation that is
// still stored and ends at the stage whose backward is next (the first pass: at the loss). Every
// stage on the way is either kept for its backward, with one of its options, or swept, in any
// variant that gives nothing back; the input of a swept stage may be stored, and is if the stage before it was kept. What
// is stored or kept stays until its stage is reversed. After a pass every backward that can run
// does.
//
// The pairs that no other schedule beats in peak and time, peak ascending. None if there are more
// than `limit` schedules.
std::optional<std::vector<PeakAndTime>> persistent_frontier(const Chain& chain, size_t limit);

// Least time within a budget; none if nothing fits.
std::optional<int64_t> best_within(const std::vector<PeakAndTime>& frontier, int64_t budget);

}  // namespace reprise::testing
