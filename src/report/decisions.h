// What a plan decided about each forward operation: keep what plain training keeps of it, or run it
// again; and what that saves and costs.
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
  kKept,        // runs once, and what the backward needs of it stays
  kRecomputed,  // runs again
  kLighter,     // runs once, and holds less than in plain training
  kPassing,     // runs once; nothing of it is needed later
};
inline constexpr size_t kVerdicts = 4;
const char* to_string(Verdict verdict);  // "kept", "recomputed", "kept in part", "not needed later"

struct Decision {
  OpIndex op = 0;
  Verdict verdict = Verdict::kKept;
  std::string variant;  // of the last run, where the op has several
  // Bytes that it wrote and that are held when the forward pass is over: just before loss or backward
  // read the first value of the forward.
  Bytes plain_held;
  Bytes plan_held;
  // Its time in plain training; of an op that plain training does not run, its first in the plan.
  Nanos once;
  int64_t runs = 0;
  Nanos extra;      // of all runs but the first
  std::string why;  // for people
};

// For each forward op of a chain the backward of its stage, whose time depends on what was kept; -1 for
// all other ops.
std::vector<OpIndex> own_backwards(const Problem& problem, const Graph& graph);

// One for each forward op that runs, in the order of the problem. Of a chain, the extra times add up to
// what the plan takes longer than plain training.
std::vector<Decision> decisions(const Graph& graph, const std::vector<OpIndex>& backwards,
                                const std::vector<Action>& plain, const Walk& plain_walk,
                                const std::vector<Action>& plan, const Walk& plan_walk);

}  // namespace reprise::report
