// The schedule classes of the chain planner, and the search of one of them.
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

const char* class_name(Dropping dropping);

// The classes to search for, each containing the one before. Empty: all. Throws InputError that
// lists the names there are.
std::vector<Dropping> wanted_classes(const std::string& name);

// Bytes of a budget that are not in the recurrence's m.
inline int64_t bytes_outside(const ChainModel& model) { return model.fixed + model.x[0]; }

// What the search of one class came to.
struct ClassResult {
  Dropping dropping = Dropping::kNothing;
  Bracket bracket = {};
  // Where no plan fits: the smallest memory at which the class has one, and its runs.
  int64_t floor = 0;
  std::vector<Run> smallest = {};

  bool infeasible() const { return !bracket.best && !smallest.empty(); }
};

// With what is known of the bracket: optimal, feasible, infeasible, or out of time.
Answer to_answer(const ChainProblem& problem, const ChainModel& model, const ClassResult& outcome);

// The best of plain training and the simpler planners, in a share of the time limit: when a planner
// had no time, or no room, for any plan of its own.
constexpr double kReserve = 0.1;
Answer simplest_plan(const ChainProblem& problem, const char* planner);

// A quick plan of the class of `cells` in so much memory, and the bound that is known before any
// search. Without a plan and without a floor there was no time, or no room for the cells.
ClassResult quick_plan(const ChainModel& model, const ChainCells& cells, int64_t memory,
                   const std::optional<Trace>& known, int threads, common::SearchControl& control);

// From a quick plan to the best one, as far as the time goes.
void finish_search(const SearchSpace& space, int64_t memory, ClassResult& outcome,
                   common::SearchControl& control);

// Both in turn: the best plan in so much memory. `known` may be a plan of a smaller class.
ClassResult search_class(const ChainModel& model, Dropping dropping, int64_t memory,
                     const std::optional<Trace>& known, int threads, common::SearchControl& control);

}  // namespace reprise::internal::chain
