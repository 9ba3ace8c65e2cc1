// The link between the ranks of a process group is a channel of a machine, and a sum over the ranks
// is a copy on it. So the simulator knows how long a step takes whose sums run beside its
// operations.
//
//     allreduce.start.0   copy bucket 0 to "ranks"   ...   wait for it   free it there
//     allreduce.wait.0
//
// The op before the copy starts the sum. The wait is that of the copy: nothing reads the bucket, and
// nothing moves it to another memory, before the sum is over.
#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "reprise/check/simulate.h"
#include "reprise/model/machine.h"
#include "reprise/model/plan.h"
#include "reprise/plan/plan.h"
#include "runtime/distributed/ranks.h"
#include "runtime/graph/averager.h"
#include "runtime/graph/lower.h"
#include "runtime/step/buckets.h"
#include "runtime/transfer/carrier.h"

namespace reprise::runtime::internal::graph {

// The memories behind the link: sums go to the first one, and exchanges of updated parameters to
// the second one. They take turns.
inline constexpr const char* kRanks = "ranks";
inline constexpr const char* kShards = "shards";

// Measures sums of two sizes, and exchanges, on memory of its own. Returns the device and the
// channels behind it, with the largest times of all ranks. All ranks call it together.
Machine measure_link(distributed::Ranks& ranks, const step::Buckets& buckets, c10::Device device);

// Returns the machine with the memories and the channels of the link behind its own. A machine that
// has them stays as it is.
Machine with_link(Machine machine, const Machine& link);
// Returns the machine without them.
Machine without_link(Machine machine);

// Says whether an action is the copy of a sum, or a wait or a free behind one.
bool is_sum(const Action& action);

// A Sum is what the link carries: the sum of a bucket, or the exchange of its updated parameters.
struct Sum {
  size_t bucket = 0;
  bool exchanges = false;

  bool operator==(const Sum&) const = default;
};

// Returns the sums of a step by the values that its plans copy to the link.
std::map<ValueIndex, Sum> sums_of(const LoweredStep& lowered, const step::Buckets& buckets);

// Carries sums and exchanges. The value stays where it is: the op before the copy has started the
// sum.
class SumCarrier final : public transfer::Carrier {
 public:
  SumCarrier(std::map<ValueIndex, Sum> sums, std::shared_ptr<Averager> averager)
      : sums_(std::move(sums)), averager_(std::move(averager)) {}

  void copy(const CopyAction& /*copy*/) override {}
  void wait(ValueIndex value, int32_t memory) override;
  void free(ValueIndex /*value*/, int32_t /*memory*/) override {}
  void end() noexcept override {}

 private:
  const std::map<ValueIndex, Sum> sums_;
  const std::shared_ptr<Averager> averager_;
};

// Returns the actions, without sums, with a copy behind each op that starts a sum or an exchange, and
// a wait and a free before the next action that reads or moves its value. `graph` is that of the step,
// with any fixed bytes, and `machine` has the link.
std::vector<Action> with_sums(const LoweredStep& lowered, const Graph& graph,
                              const step::Buckets& buckets, const std::vector<Action>& actions,
                              const Machine& machine);
// Returns the plan with its sums, its time on the machine, and a bound of all plans with sums.
PlanResult with_sums(const LoweredStep& lowered, const Graph& graph, const step::Buckets& buckets,
                     PlanResult result, const Machine& machine);
// Returns the plan without them. Its time is that of its runs and other copies on the machine.
Plan without_sums(const Graph& graph, Plan plan, const Machine& machine);

// Returns a time that no plan of the step beats on this link: a bucket can be summed when its
// gradients are there, and the link then carries it and all buckets behind it.
Nanos sums_bound(const LoweredStep& lowered, const Graph& graph, const step::Buckets& buckets,
                 const Machine& machine);

}  // namespace reprise::runtime::internal::graph
