// The link between the ranks of a process group is a channel of a machine, and a sum over the ranks
// is a copy on it. So the simulator knows how long a step takes whose sums run beside its
// operations.
//
//     allreduce.start.0   copy bucket 0 to "ranks"   ...   wait for it   free it there
//     allreduce.wait.0
//
// A plan that is shown has these copies, waits and frees. A plan that runs has none, because the
// ops before the copies and behind the waits do the work.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <vector>

#include "reprise/check/simulate.h"
#include "reprise/model/machine.h"
#include "reprise/model/plan.h"
#include "reprise/model/runlog.h"
#include "reprise/plan/plan.h"
#include "runtime/distributed/ranks.h"
#include "runtime/graph/lower.h"
#include "runtime/step/buckets.h"

namespace reprise::runtime::internal::graph {

// The memories behind the link: sums go to the first one, and exchanges of updated parameters to
// the second one. They take turns.
inline constexpr const char* kRanks = "ranks";
inline constexpr const char* kShards = "shards";

// Measures sums of two sizes, and exchanges, on memory of its own. Returns the device and the
// channels behind it, with the largest times of all ranks. All ranks call it together.
Machine measure_link(distributed::Ranks& ranks, const step::Buckets& buckets, c10::Device device);

// Says whether a machine is that of a link, and whether a plan has copies to one.
bool is_link(const Machine& machine);
bool uses_link(const Plan& plan);

// Returns the actions with a copy behind each op that starts a sum or an exchange, and a wait and a
// free before each op that waits for one. `graph` is that of the step, with any fixed bytes.
std::vector<Action> with_link(const LoweredStep& lowered, const Graph& graph,
                              const step::Buckets& buckets, const std::vector<Action>& actions,
                              const Machine& link);
// Returns the plan without them. Its time is that of its runs.
Plan without_link(const Graph& graph, Plan plan);

// Returns a time that no plan of the step beats on this link: a bucket can be summed when its
// gradients are there, and the link then carries it and all buckets behind it.
Nanos link_bound(const LoweredStep& lowered, const Graph& graph, const step::Buckets& buckets,
                 const Machine& link);

// Returns the answer as it is shown: with the copies, the time on the link, and the larger bound.
PlanResult shown_on_link(const LoweredStep& lowered, const Graph& graph,
                         const step::Buckets& buckets, PlanResult result, const Machine& link);

// Makes the log of a plan that runs the log of the plan that is shown.
void show_on_link(RunLog& log, const Plan& runs, const Plan& shown);

}  // namespace reprise::runtime::internal::graph
