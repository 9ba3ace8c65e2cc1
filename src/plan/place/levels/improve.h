// improve() is the local search of this room: it changes single choices, builds the exact flow of
// each change, and keeps what is not slower. So its judge is the exact plan, and not a model of it.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "plan/common/search_control.h"
#include "plan/place/flow.h"
#include "plan/place/levels/choices.h"
#include "reprise/model/plan.h"

namespace reprise::internal::levels {

// A Candidate is a plan in the making, with the choices that it comes from.
struct Candidate {
  Choices choices;
  Schedule schedule;
  place::FlowCost cost;
};

// A search works with these objects. All must outlive it.
struct Workbench {
  const chain::ChainModel& model;
  Scheduler& scheduler;
  place::Flow& flow;
  size_t lanes = 0;
  int64_t budget = 0;              // the whole budget of the device
  common::SearchControl& control;  // of the observer
  bool sweeps = true;              // false: every stage is kept, and nothing is made again
};

// Returns the choices with their cost; nothing if the scheduler refuses them, or if they take longer
// than `limit`. Where they do not fit, only the peak counts.
std::optional<Candidate> evaluate(const Workbench& bench, Choices choices, int64_t limit);

// An Effort limits a search. If the flows are done before the time is, equal arguments give equal
// results.
struct Effort {
  int64_t evaluations = 0;  // flows to build
  std::chrono::nanoseconds time{0};
  uint64_t seed = 0;  // searches with different seeds go different ways
};

// Searches from a candidate that fits. Never returns a slower one. `floor` is a time that no plan
// beats: the search ends there.
Candidate improve(const Workbench& bench, Candidate start, int64_t floor, const Effort& effort);

}  // namespace reprise::internal::levels
