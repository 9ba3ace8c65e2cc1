#include "runtime/distributed/shared_plan.h"

#include <fmt/format.h>

#include <limits>
#include <utility>
#include <vector>

#include "reprise/check/simulate.h"
#include "reprise/check/verify.h"
#include "reprise/io/json.h"
#include "reprise/model/errors.h"
#include "runtime/distributed/wire.h"

namespace reprise::runtime::internal::distributed {
namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();  // a capacity

std::string text_of(const PlanResult& answer) {
  Packed all;
  all.add(answer.plan ? to_json(*answer.plan) : "");
  if (!answer.plan) {
    all.add(static_cast<int64_t>(answer.termination))
        .add(static_cast<int64_t>(answer.proof))
        .add(answer.smallest_budget.value_or(Bytes(-1)).count())
        .add(answer.planner)
        .add(answer.blocking_op);
  }
  return all.take();
}

PlanResult result_of(const std::string& text) {
  Unpacked told(text);
  PlanResult result;
  if (const std::string plan = told.text(); !plan.empty()) {
    result.plan = parse_plan(plan, "the plan of rank 0");
    result.termination = result.plan->termination;
    result.planner = result.plan->planner;
    result.schedule_class = result.plan->schedule_class;
    result.lower_bound = result.plan->lower_bound;
    return result;
  }
  result.termination = static_cast<Termination>(told.number());
  result.proof = static_cast<Proof>(told.number());
  const Bytes smallest(told.number());
  if (smallest.count() >= 0) result.smallest_budget = smallest;
  result.planner = told.text();
  result.blocking_op = told.text();
  return result;
}

}  // namespace

SharedDecision decision_of_first(Ranks* ranks, const std::function<SharedDecision()>& decide) {
  if (ranks == nullptr) return decide();
  Unpacked told(ranks->by_first("its decision", [&] {
    const SharedDecision mine = decide();
    return Packed().add(mine.yes ? 1 : 0).add(mine.why).take();
  }));
  const bool yes = told.number() != 0;
  return {yes, told.text()};
}

std::string first_reason(Ranks* ranks, const std::string& mine, const std::string& what) {
  if (ranks == nullptr) return mine;
  for (const std::string& reason : ranks->exchange(mine, what)) {
    if (!reason.empty()) return reason;
  }
  return {};
}

void agree_on_plan(Ranks& ranks, const std::string& objection) {
  const std::vector<std::string> all = ranks.exchange(objection, "its word on the plan");
  std::string objections;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (!all[rank].empty()) objections += fmt::format("\nrank {}: {}", rank, all[rank]);
  }
  if (!objections.empty()) {
    throw InputError("the plan is not used, because some ranks refuse it:" + objections);
  }
}

void agree_on_machine(Ranks& ranks, Machine& machine, c10::Device device) {
  Machine structure = machine;
  std::vector<int64_t> numbers;  // the largest ones of all ranks are those of the slowest machine
  for (Memory& memory : structure.memories) {
    numbers.push_back(-memory.capacity.value_or(Bytes(kUnlimited)).count());
    memory.capacity.reset();
  }
  for (Channel& channel : structure.channels) {
    numbers.push_back(-std::exchange(channel.bytes_per_second, 1));
    numbers.push_back(std::exchange(channel.latency, Nanos(0)).count());
    numbers.push_back(std::exchange(channel.shares, -1));
  }
  ranks.require_equal(to_json(structure), "its memories", [](const Ranks::Difference& found) {
    return fmt::format(
        "the ranks of the process group move values to different memories: rank {} differs from "
        "rank 0. Give all ranks the same memory and the same machine",
        found.ranks);
  });
  ranks.maxima(numbers, device, "the exchange of the machine's numbers");
  size_t next = 0;
  for (Memory& memory : machine.memories) {
    const int64_t capacity = -numbers[next++];
    if (capacity != kUnlimited) memory.capacity = Bytes(capacity);
  }
  for (Channel& channel : machine.channels) {
    channel.bytes_per_second = -numbers[next++];
    channel.latency = Nanos(numbers[next++]);
    channel.shares = static_cast<int32_t>(numbers[next++]);
  }
}

PlanResult plan_of_first(Ranks& ranks, const Graph& graph, const Machine& machine, Bytes budget,
                         const std::function<PlanResult()>& search) {
  PlanResult result;
  const std::string text = ranks.by_first("its plan", [&] {
    result = search();
    return text_of(result);
  });
  if (ranks.rank() != 0) {
    result = telling(&ranks, [&] { return result_of(text); });
    result.budget = budget;
    result.baseline = baseline(graph);
    if (result.plan) result.machine_sha256 = result.plan->machine_sha256;
  }
  if (!result.plan) return result;
  std::string objection;
  for (const Violation& violation : verify(graph, *result.plan, budget, machine)) {
    objection += (objection.empty() ? "" : "; ") + violation.message;
  }
  agree_on_plan(ranks, objection);
  return result;
}

}  // namespace reprise::runtime::internal::distributed
