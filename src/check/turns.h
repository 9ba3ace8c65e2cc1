// Turns says which ops may run when: once, in the order of the graph, in a variant for first runs or
// re-runs, of one realization of each choice. verify() uses it; it reports faults and goes on.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "reprise/check/verify.h"
#include "reprise/model/graph.h"

namespace reprise {

// Takes the kind of a violation, the id that it is about, and the message.
using ReportViolation =
    std::function<void(ViolationKind kind, const std::string& id, const std::string& message)>;

class Turns {
 public:
  // The graph must outlive the object.
  Turns(const Graph& graph, ReportViolation report);

  // Checks whether this variant of this op may run now, and counts the run.
  void run(OpIndex op, const Variant& variant);
  // Counts a run in a variant that the op does not have.
  void run_unknown(OpIndex op) { ++runs_[op]; }
  // Checks what is missing at the end.
  void end() const;

 private:
  const Graph& graph_;
  ReportViolation report_;
  std::vector<int64_t> runs_;  // by op
  OpIndex last_once_ = -1;     // the last op in graph order that runs once and has run
  OpIndex last_random_ = -1;   // the last op in graph order that draws random numbers and has run
  std::vector<int32_t> choice_of_, realization_of_;  // by op; -1 for an op in no choice
  std::vector<int32_t> chosen_;                      // by choice; -1 before any of its ops has run
};

}  // namespace reprise
