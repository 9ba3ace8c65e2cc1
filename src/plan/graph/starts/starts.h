// Schedules to start a search from.
#pragma once

#include <optional>
#include <vector>

#include "plan/graph/schedule/schedule.h"

namespace reprise::internal::starts {

// Plain training with backward ops, and choices, in the ways that are cheapest if a byte of what an
// op holds while it runs has a price in time; as far as the rest can stay as it is.
schedule::Schedule cheapest_variants(const schedule::ScheduleModel& model, double price);

// Keeps the given values (by value) at one position, and drops what else is there until it is made
// again; otherwise as `base`.
schedule::Schedule kept_at(const schedule::ScheduleModel& model, const schedule::Schedule& base, int32_t position,
                 const std::vector<char>& kept);

// The same; ops that make nothing which is kept there or read before wait until something reads it.
schedule::Schedule kept_or_put_off(const schedule::ScheduleModel& model, const schedule::Schedule& base, int32_t position,
                         const std::vector<char>& kept);

// The first op that is not forward; the number of ops if all are.
int32_t position_of_loss(const schedule::ScheduleModel& model);

// Plain training, and what forward ops read across the bounds of equally long segments, for more
// and more segments.
std::vector<schedule::Schedule> schedules_of_segments(const schedule::ScheduleModel& model, const schedule::Schedule& base);

struct Mix {
  schedule::Schedule schedule;
  int64_t time = 0;
};

// Positions, both included.
struct Window {
  int32_t begin = 0, end = 0;
};

// Of two sets of values to keep at a position, one that keeps little and one that keeps much: the
// second for what is made on one side of some op, the first for the rest. With repeated blocks the
// best plan is often of this form: a price of memory that is right treats all blocks alike, and a
// budget between two such plans asks for some blocks of each. The fastest within the budget that
// bisection finds, if the first set alone fits. O(log ops) walks over the graph. In a window, what is outside
// may be above the budget.
std::optional<Mix> mix_of(const schedule::ScheduleModel& model, const schedule::Schedule& base, int32_t position,
                          const std::vector<std::vector<ValueIndex>>& kept, int64_t budget,
                          std::optional<Window> window = std::nullopt);

}  // namespace reprise::internal::starts
