// A Decision says what a plan does about a forward operation: it keeps the values that plain
// training keeps, or it runs the operation again. The decision also has what that saves and costs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "report/walk.h"
#include "reprise/io/json.h"
#include "reprise/model/graph.h"
#include "reprise/model/plan.h"

namespace reprise::report {

enum class Verdict {
  kKept,        // runs once, and the values that the backward needs stay
  kRecomputed,  // runs again
  kLighter,     // runs once, and holds less than in plain training
  kPassing,     // runs once; none of its values is needed later
};
inline constexpr size_t kVerdicts = 4;
const char* to_string(Verdict verdict);  // "kept", "recomputed", "kept in part", "not needed later"

struct Decision {
  OpIndex op = 0;
  Verdict verdict = Verdict::kKept;
  std::string variant;  // variant of the last run, if the op has several
  // The op wrote these bytes, and they are held when the forward pass is over: just before loss or
  // backward read the first value of the forward.
  Bytes plain_held;
  Bytes plan_held;
  // Its time in plain training; of an op that plain training does not run, its first in the plan.
  Nanos once;
  int64_t runs = 0;
  Nanos extra;      // all runs but the first
  std::string why;  // a reason, for people
};

// Returns for each forward op of a chain the backward of its stage, whose time depends on what was
// kept. The entry of any other op is -1.
std::vector<OpIndex> own_backwards(const Problem& problem, const Graph& graph);

// Returns one decision for each forward op that runs, in the order of the problem. In a chain, the
// extra times add up to the time by which the plan is slower than plain training.
std::vector<Decision> decisions(const Graph& graph, const std::vector<OpIndex>& backwards,
                                const std::vector<Action>& plain, const Walk& plain_walk,
                                const std::vector<Action>& plan, const Walk& plan_walk,
                                const Machine& machine = {});

}  // namespace reprise::report
