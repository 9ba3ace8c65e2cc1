// Declares the schedule classes of the chain planner, and the search of one of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "plan/chain/cells.h"
#include "plan/chain/model.h"
#include "plan/chain/search.h"
#include "plan/common/search_control.h"
#include "reprise/model/plan.h"
#include "reprise/plan/planner.h"

namespace reprise::internal::chain {

const char* class_name(Schedules schedules);

// Returns the classes to search, each containing the one before. An empty name means all classes.
// Throws InputError that lists the known names.
std::vector<Schedules> wanted_classes(const std::string& name);

// Returns the bytes of a budget that are not in the recurrence's m.
inline int64_t bytes_around(const ChainModel& model) { return model.fixed + model.x[0]; }

// A ClassResult is what the search of one class finds.
struct ClassResult {
  Schedules schedules = Schedules::kPersistent;
  Bracket bracket = {};
  // If no plan fits: the smallest memory at which the class has a plan, and the runs of that plan.
  int64_t floor = 0;
  std::vector<Run> smallest = {};

  bool infeasible() const { return !bracket.best && !smallest.empty(); }
};

// Adds what is known from the bracket: optimal, feasible, infeasible, or out of time.
Answer to_answer(const ChainProblem& problem, const ChainModel& model, const ClassResult& outcome);

// The best of plain training and the simpler planners is the answer if this planner had no time, or
// no room, for a plan of its own. kReserve is the share of the time limit that is set aside for it.
constexpr double kReserve = 0.1;
Answer simplest_plan(const ChainProblem& problem, const char* planner);

// Finds a quick plan of the class of `cells` in the given memory, and the bound that is known
// before any search. If the result has neither a plan nor a floor, there was no time, or no room
// for the cells.
ClassResult quick_plan(const ChainModel& model, const ChainCells& cells, int64_t memory,
                       const std::optional<Trace>& known, int threads,
                       common::SearchControl& control);

// Searches from a quick plan to the best one, as far as the time allows.
void finish_search(const SearchSpace& space, int64_t memory, ClassResult& outcome,
                   common::SearchControl& control);

// Does both in turn, and returns the best plan in the given memory. `known` may be a plan of a
// smaller class.
ClassResult search_class(const ChainModel& model, Schedules schedules, int64_t memory,
                         const std::optional<Trace>& known, int threads,
                         common::SearchControl& control);

}  // namespace reprise::internal::chain
