// What a run of a plan took, action by action, beside what was planned.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reprise/model/plan.h"
#include "reprise/model/units.h"

namespace reprise {

// One run of an operation. Frees take no time and are not listed.
struct RunLogEntry {
  int64_t action = 0;   // position in Plan::actions
  std::string op;       // of that action, so that the log of another plan is noticed
  std::string variant;  //
  // Device bytes while it runs, fixed included: TimelineStep::during.
  Bytes planned_bytes = {};
  Bytes measured_bytes = {};
  Nanos planned_time = {};
  Nanos measured_time = {};

  bool operator==(const RunLogEntry&) const = default;
};

// A whole step.
struct StepCost {
  Bytes peak;
  Nanos time;

  bool operator==(const StepCost&) const = default;
};

struct RunLog {
  ProblemId problem;
  std::string device;  // "cpu", "cuda:0"
  int64_t steps = 1;   // that were measured; times are their medians, bytes their largest
  StepCost planned = {};
  // As a whole: what lies between the actions is in it, so it may be more than their sum.
  StepCost measured = {};
  std::vector<RunLogEntry> actions = {};  // positions ascend; runs may be missing

  bool operator==(const RunLog&) const = default;
};

// Throws InputError, with a JSON pointer into the log, unless every entry is a run of `plan` (position,
// op, variant), positions ascend, and both are for the same problem. O(actions).
void validate(const RunLog& log, const Plan& plan);

}  // namespace reprise
