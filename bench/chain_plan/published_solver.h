// This is the published solver for persistent schedules, as described for the program that
// accompanies O. Beaumont et al., "Optimal checkpointing for heterogeneous chains", arXiv
// 1911.13214. A user of that work would run it. It is written anew, with the layout, the rounding
// and the tests of that work:
//
// - Every size is rounded up, each on its own, to slots of limit / slots bytes.
// - Two dense tables have (slots + 1) (L + 1)^2 elements, doubles for the times and longs for the
//   decisions, and both triangles are stored. The loops run over memory, first stage, last stage and
//   checkpoint.
// - The test for keeping a stage takes the gradient behind that stage instead of the segment's. Both
//   branches are tested with a sweep over the whole segment. Hence some plans are over the budget,
//   and some budgets that suffice are refused. See docs/planners/chain.md.
//
// Its model has one option a stage, whose backward reads input and output. Parameters and weight
// gradients are outside its limit: here they are taken from the budget before it begins.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "reprise/model/chain.h"
#include "reprise/model/plan.h"
#include "reprise/model/units.h"

namespace reprise::bench {

struct PublishedCost {
  Bytes tables;
  double updates = 0;  // runs of the inner loop
};
PublishedCost published_cost(const Chain& chain, int64_t slots);

// Returns the runs of the solver's schedule for the budget, or nullopt if it finds none.
std::optional<std::vector<Run>> published_solver(const Chain& chain, Bytes budget, int64_t slots);

}  // namespace reprise::bench
