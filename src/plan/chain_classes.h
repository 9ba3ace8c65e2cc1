// The schedule classes of the chain planner, and the search of one of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "plan/chain_cells.h"
#include "plan/chain_model.h"
#include "plan/chain_search.h"
#include "plan/search_control.h"
#include "reprise/model/plan.h"

namespace reprise::internal {

const char* class_name(Dropping dropping);

// The classes to search for, each containing the one before. Empty: all. Throws InputError that
// lists the names there are.
std::vector<Dropping> wanted_classes(const std::string& name);

// Bytes of a budget that are not in the recurrence's m.
inline int64_t bytes_outside(const ChainModel& model) { return model.fixed + model.x[0]; }

// What the search of one class came to.
struct Outcome {
  Dropping dropping = Dropping::kNothing;
  Bracket bracket = {};
  // Where no plan fits: the smallest memory at which the class has one, and its runs.
  std::optional<int64_t> floor = {};
  std::vector<Run> smallest = {};
};

// The best plan in so much memory. `known` may be a plan of a smaller class.
Outcome search_class(const ChainModel& model, Dropping dropping, int64_t memory,
                     const std::optional<Trace>& known, int threads, SearchControl& control);

}  // namespace reprise::internal
