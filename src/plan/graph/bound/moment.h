// These are moments that every plan has, and what each of them demands
// (docs/planners/graph_bound.md, Lemma 10).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "plan/common/graph_facts.h"
#include "plan/common/search_control.h"
#include "plan/graph/bound/instant.h"

namespace reprise::internal::bound {

// A Moment is the run of an op that every plan runs exactly once; or a choice, of which every plan
// runs the ordered ops of exactly one realization. The least of what the realizations demand holds
// for all plans.
struct Moment {
  struct Realization {
    std::vector<OpIndex> ops;  // its ordered ops
    int64_t extra = 0;         // the time of all its first runs, beyond the fastest realization
    OpIndex at = -1;           // the one of its ordered ops that assumptions about the moment mean
  };
  std::vector<Realization> realizations;  // a single op is one realization
  OpIndex first;                          // the first of the ops of all realizations
  bool is_choice;
};

// Returns the assumption that a value is live at a moment, or that it is not.
Assumption assume_at(const Moment& moment, ValueIndex value, bool live);

// Returns all moments of a graph, ascending by `first`.
std::vector<Moment> moments_of(const common::GraphFacts& facts);

// A MomentCost is the cost that every plan pays from a moment on, in a stretch of time.
struct MomentCost {
  OpIndex op = -1;                            // the op whose run decides the cost
  bool is_assumed = false;                    // whether assumptions about the moment mean this op
  int64_t time = 0;                           // time beyond facts.least_time
  std::vector<std::vector<ValueIndex>> kept;  // as Instant::kept()
};

// Sets `at` of each realization to the op that decides what the moment costs, as far as there is
// time.
void find_deciding_ops(const common::GraphFacts& facts, Moment& moment, int64_t budget,
                       const common::SearchControl& control);

// Returns the cost of the plans within the budget for which the assumptions hold, or nothing if
// there is no such plan.
std::optional<MomentCost> cost_of_moment(const common::GraphFacts& facts, const Moment& moment,
                                         int64_t budget,
                                         const std::vector<Assumption>& assumptions = {},
                                         Instant::Stretch stretch = {});

// Returns the time of a plan that pays so much beyond facts.least_time, as far as 64 bits go.
Nanos time_with(const common::GraphFacts& facts, Instant::Amount extra);

struct MomentPeak {
  OpIndex op = -1;  // the op that needs it
  int64_t peak = 0;
};

// Returns a peak that no plan can go below, or nothing if no plan has this moment.
std::optional<MomentPeak> peak_of_moment(const common::GraphFacts& facts, const Moment& moment);

}  // namespace reprise::internal::bound
