// Goes through every persistent schedule of a small chain, and every one of the class
// "persistent-branches" of a small join. The simulator computes the cost of each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "reprise/model/chain.h"
#include "reprise/model/graph.h"
#include "reprise/model/join.h"

namespace reprise::testing {

struct PeakAndTime {
  int64_t peak = 0;
  int64_t time = 0;

  bool operator==(const PeakAndTime&) const = default;
};

// A persistent schedule is a series of forward passes. A pass starts at the last activation that is
// still stored, and ends at the stage whose backward is next; the first pass ends at the loss.
// Every stage on the way is kept for its backward, with one of its options, or it is swept, in any
// variant that gives nothing back. The kept run of the stage whose backward is next stops early if
// that can be. The input of a swept stage may be stored, and it is stored if
// the stage before was kept. A stored or kept value stays until its stage is reversed. After a
// pass, every backward that can run does.
//
// With `inputs_only`, a stage is kept only if its backward, or the loss, comes next.
//
// Returns the pairs of peak and time that no other schedule beats, peak ascending. Returns nothing
// if there are more than `limit` schedules.
std::optional<std::vector<PeakAndTime>> persistent_frontier(const Chain& chain, size_t limit,
                                                            bool inputs_only = false);

// On the way to the loss, the branches run in their order. Every stage is kept with one of its
// options, or swept, in any variant that gives nothing back. The input of a swept stage may be
// stored, and it is stored if the stage before was kept, or if there is none. Behind the loss, one
// piece after the other is reversed, from any branch: the top stage, if it was kept, or all stages
// from the last stored activation on, by a persistent schedule of their own.
//
// Returns the same for these schedules.
std::optional<std::vector<PeakAndTime>> branch_frontier(const Join& join, size_t limit);

// Returns all variants of the forward of a stage that make the output, but two kinds: those that
// another one beats in both time and memory, and those that give back the input, which is stored or
// may be.
std::vector<int32_t> sweep_variants(const Graph& graph, OpIndex forward, const Stage& stage);

// Returns the pairs that no other one beats, peak ascending.
std::vector<PeakAndTime> unbeaten(std::vector<PeakAndTime> all);

// Returns the least time within a budget, or nothing if no schedule fits.
std::optional<int64_t> best_within(const std::vector<PeakAndTime>& frontier, int64_t budget);

}  // namespace reprise::testing
