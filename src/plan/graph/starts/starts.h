// Schedules to start a search from, made from sets of values that are kept at one position.
#pragma once

#include <optional>
#include <vector>

#include "plan/graph/schedule/schedule.h"

namespace reprise::internal::starts {

// Plain training, with the cheapest realizations of choices and the cheapest variants of backward
// ops, where a byte that an op holds while it runs has a price in time. An op stays as it is if its
// change would ask others to change.
schedule::Schedule cheapest_variants(const schedule::ScheduleModel& model, double price);

// `base`, but of the values that are live at one position only those are kept that `kept` (by
// value) says. The others are dropped until they are made again.
schedule::Schedule kept_at(const schedule::ScheduleModel& model, const schedule::Schedule& base,
                           int32_t position, const std::vector<char>& kept);

// The same, with forward ops put off that make nothing which is kept there or read before.
schedule::Schedule kept_or_put_off(const schedule::ScheduleModel& model,
                                   const schedule::Schedule& base, int32_t position,
                                   const std::vector<char>& kept);

// The first op that is not forward; the number of ops if all are.
int32_t position_of_loss(const schedule::ScheduleModel& model);

// `base`, but it keeps only what forward ops read across the bounds of so many segments of equally
// many forward ops.
schedule::Schedule schedule_of_segments(const schedule::ScheduleModel& model,
                                        const schedule::Schedule& base, int32_t segments);

// `base` as it is; then the schedules of more and more segments.
std::vector<schedule::Schedule> schedules_of_segments(const schedule::ScheduleModel& model,
                                                      const schedule::Schedule& base);

struct Mix {
  schedule::Schedule schedule;
  int64_t time = 0;
};

// A range of positions, both ends included.
struct Window {
  int32_t begin = 0, end = 0;
};

// A mix of two sets of values to keep at a position. The first set keeps little, the second one
// much:
//
//     blocks of the network    1   2   3   4   5   6   7   8
//     what is kept in each     much------->|<----------little      or the other way round
//
// The second set is taken for what is made on one side of some op, and the first set for the rest.
// With repeated blocks the best plan often has this form: the right price of memory treats all
// blocks alike, and a budget between two such plans asks for some blocks of each. Returns the
// fastest mix within the budget that bisection finds, if the first set alone fits. With a window,
// only the memory in the window must be within the budget. `put_off` says whether ops may be put
// off. O(log ops) walks over the graph.
std::optional<Mix> mix_of(const schedule::ScheduleModel& model, const schedule::Schedule& base,
                          int32_t position, const std::vector<std::vector<ValueIndex>>& kept,
                          int64_t budget, std::optional<Window> window = std::nullopt,
                          bool put_off = true);

}  // namespace reprise::internal::starts
