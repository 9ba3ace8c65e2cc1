// Moments that every plan has, and what each of them demands.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "plan/common/graph_facts.h"
#include "plan/graph/bound/instant.h"
#include "plan/common/search_control.h"

namespace reprise::internal::bound {

// The run of an op that runs exactly once in every plan; or, of a choice, the runs of the ordered ops of one of its
// realizations, of which every plan has exactly one: the least of what these demand holds for all plans.
struct Moment {
  struct Realization {
    std::vector<OpIndex> ops;  // the ordered ones
    int64_t extra = 0;         // time of all first runs, beyond the fastest realization
    OpIndex at = -1;           // of these, the one that assumptions about the moment mean
  };
  std::vector<Realization> realizations;  // of a single op: that op
  OpIndex first;                          // of all ops
  bool is_choice;
};

// Of a moment.
Assumption assume_at(const Moment& moment, ValueIndex value, bool live);

// Ascending by `first`.
std::vector<Moment> moments_of(const common::GraphFacts& facts);

// What every plan pays from a moment on, in a stretch of time.
struct MomentCost {
  OpIndex op = -1;                            // whose run decides it
  bool is_assumed = false;                    // assumptions about the moment mean this op
  int64_t time = 0;                           // beyond facts.least_time
  std::vector<std::vector<ValueIndex>> kept;  // as Instant::kept()
};

// Sets `at` of each realization to the op that decides what the moment costs, as far as there is time.
void find_deciding_ops(const common::GraphFacts& facts, Moment& moment, int64_t budget,
                       const common::SearchControl& control);

// None: no plan within the budget (of which the assumptions are true) has this moment.
std::optional<MomentCost> cost_of_moment(const common::GraphFacts& facts, const Moment& moment,
                                         int64_t budget,
                                         const std::vector<Assumption>& assumptions = {},
                                         Instant::Stretch stretch = {});

// Of a plan that pays so much beyond facts.least_time; as far as 64 bits go.
Nanos time_with(const common::GraphFacts& facts, Instant::Amount extra);

struct MomentPeak {
  OpIndex op = -1;  // that needs it
  int64_t peak = 0;
};

// The least peak of all plans, as far as the moment tells; none: no plan has it.
std::optional<MomentPeak> peak_of_moment(const common::GraphFacts& facts, const Moment& moment);

}  // namespace reprise::internal::bound
