// The kinds of schedules that a search starts from, as a table.
//
// To add a kind: write its function, add a row to kStarts and a switch to StartSwitches. The
// question (graph/question.cc) walks the rows in order and needs no change.
#pragma once

#include <string_view>
#include <vector>

#include "plan/common/graph_facts.h"
#include "plan/common/search_control.h"
#include "plan/graph/bound/bound.h"
#include "plan/graph/schedule/schedule.h"
#include "plan/graph/starts/params.h"
#include "reprise/model/units.h"

namespace reprise::internal::starts {

// The question that the functions of the table answer.
struct StartQuestion {
  const schedule::ScheduleModel& model;
  const schedule::Schedule& base;  // plain training in the variants that suit the price of a byte
  const common::GraphFacts& facts;
  const bound::GraphBound& bound;
  Bytes budget;
  const std::vector<schedule::Schedule>& seeds;  // schedules that are known from other questions
  double price_of_excess;                        // time that a byte above the budget counts for
  const StartParams& params;
  bool has_plan = false;  // the search has a plan by now
};

// The use that the search makes of the schedules of a row.
enum class Taking {
  kRepair,     // repairs them at once, together with those of the rows before that wait for it
  kWithNext,   // lets them wait for the next row of kRepair
  kLast,       // after all rows for the budget: takes those that are better than what there is
  kAnyBudget,  // repairs them, and counts them for the smallest peak, too
};

struct Start {
  std::string_view name;
  bool StartSwitches::*use;
  std::vector<schedule::Schedule> (*find)(const StartQuestion& question,
                                          const common::SearchControl& control);
  bool (*when)(const StartQuestion& question);
  Taking taking;
};

// In the order in which the rows are walked. The search ends between two rows when it is near the
// bound.
extern const Start kStarts[6];

}  // namespace reprise::internal::starts
