// For planners that try a family of schedules: each is costed by the simulator, the best that fits
// is the answer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "reprise/model/frontier.h"
#include "reprise/model/graph.h"
#include "reprise/model/plan.h"
#include "reprise/plan/planner.h"

namespace reprise::internal::common {

// The id of the op that reaches the peak of these runs first.
std::string peak_op(const Graph& graph, const std::vector<Run>& runs);

// No valid plan of the chain takes less time: every stage runs forward and backward with some
// option.
Nanos least_time(const Chain& chain);
// The same for a graph: every op runs, of a choice the ops of one realization.
Nanos least_time(const Graph& graph);

class Candidates {
 public:
  Candidates(const Graph& graph, Bytes budget) : graph_(graph), budget_(budget) {}

  // Costs O(simulation).
  void consider(std::vector<Run> runs);

  // Whether some candidate so far is within the budget.
  bool fits() const { return best_.has_value(); }

  // The fastest candidate within the budget; on ties fewer runs, then the smaller peak. Without
  // one, infeasible with the smallest peak, or out of time if not `all` candidates were considered.
  Answer answer(Nanos lower_bound, bool all) const;

  // The candidates that no other beats in both time and peak.
  std::vector<FrontierPoint> curve(Nanos lower_bound) const;

 private:
  struct Candidate {
    std::vector<Run> runs;
    Bytes peak;
    Nanos time;
  };

  const Graph& graph_;
  Bytes budget_;
  std::optional<Candidate> best_;
  std::optional<Candidate> smallest_;
  std::vector<FrontierPoint> points_;
};

}  // namespace reprise::internal::common
