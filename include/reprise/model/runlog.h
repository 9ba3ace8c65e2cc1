// A RunLog says what a plan took when it ran, action by action, beside what was planned.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reprise/model/plan.h"
#include "reprise/model/units.h"

namespace reprise {

// A RunLogEntry is one run of an op. Frees take no time and have no entries.
struct RunLogEntry {
  int64_t action = 0;  // the position in Plan::actions
  // The op and the variant are those of that action, so that the log of another plan is noticed.
  std::string op;
  std::string variant;
  // These are the device bytes while the op runs, with the fixed bytes (TimelineStep::during).
  Bytes planned_bytes = {};
  Bytes measured_bytes = {};
  Nanos planned_time = {};
  Nanos measured_time = {};

  bool operator==(const RunLogEntry&) const = default;
};

// A StepCost is what a whole step costs.
struct StepCost {
  Bytes peak;
  Nanos time;

  bool operator==(const StepCost&) const = default;
};

struct RunLog {
  ProblemId problem;
  std::string device;  // "cpu", "cuda:0"
  int64_t steps = 1;   // So many were measured. Times are medians over them, bytes are maxima.
  StepCost planned = {};
  // The step is measured as a whole. Its time has what lies between the actions, and so it may be
  // more than the sum of theirs.
  StepCost measured = {};
  std::vector<RunLogEntry> actions = {};  // The positions ascend. Runs may be missing.

  bool operator==(const RunLog&) const = default;
};

// Throws InputError, with a JSON pointer into the log, unless every entry is a run of `plan` by
// position, op and variant, the positions ascend, and log and plan are for the same problem. The
// cost is O(actions).
void validate(const RunLog& log, const Plan& plan);

}  // namespace reprise
