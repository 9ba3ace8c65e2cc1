// Candidates is for planners that try a family of schedules. The simulator costs each schedule, and
// the best one that fits is the answer.
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

// Returns the time of these runs where nothing is copied.
Nanos time_of(const Graph& graph, const std::vector<Run>& runs);

// Returns the id of the first op that reaches the peak of these runs.
std::string peak_op(const Graph& graph, const std::vector<Run>& runs);

// Returns a time that no valid plan of the chain can beat: every stage runs forward and backward
// with some option.
Nanos least_time(const Chain& chain);
// Returns the same for a graph: every op runs, and of each choice the ops of one realization.
Nanos least_time(const Graph& graph);

class Candidates {
 public:
  Candidates(const Graph& graph, Bytes budget) : graph_(graph), budget_(budget) {}

  // Simulates the runs and adds them to the candidates. Costs O(simulation).
  void consider(std::vector<Run> runs);

  // Returns whether some candidate so far is within the budget.
  bool fits() const { return best_.has_value(); }

  // Returns the fastest candidate within the budget; ties go to fewer runs, then to the smaller
  // peak. If no candidate fits, the answer is infeasible with the smallest peak, or out of time if
  // not `all` candidates were considered.
  Answer answer(Nanos lower_bound, bool all) const;

  // Returns the candidates that no other candidate beats in both time and peak.
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
