// The published solver for persistent schedules, as described for the program that accompanies
// O. Beaumont et al., "Optimal checkpointing for heterogeneous chains", arXiv 1911.13214: what a
// user of that work would run. Written anew, with its layout, its rounding and its tests:
//
// - every size rounded up to slots of limit / slots bytes, each on its own;
// - dense tables of (slots + 1) (L + 1)^2 elements, one of doubles with the times, one of longs
//   with the decisions, both triangles stored; loops over memory, first stage, last stage,
//   checkpoint;
// - keeping a stage is tested with the gradient behind that stage instead of the segment's, and
//   both branches with a sweep over the whole segment. Hence plans over the budget and refusals of
//   budgets that suffice; see docs/planners/chain.md.
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
  double updates = 0;  // of the inner loop
};
PublishedCost published_cost(const Chain& chain, int64_t slots);

// The runs of its schedule for the budget; nullopt when it finds none.
std::optional<std::vector<Run>> published_solver(const Chain& chain, Bytes budget, int64_t slots);

}  // namespace reprise::bench
