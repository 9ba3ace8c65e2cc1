#include "runtime/graph/link.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "reprise/io/json.h"
#include "reprise/model/errors.h"

namespace reprise::runtime::internal::graph {

using distributed::Ranks;
using step::Bucket;
using step::Buckets;

namespace {

constexpr int64_t kLargest = 8 << 20, kSmallest = 4096;  // bytes of sums that are measured
constexpr int kRepeats = 4;
constexpr size_t kMeasuredSum = std::numeric_limits<size_t>::max();  // of a sum that is measured
constexpr int64_t kFastest = 1'000'000'000'000;                      // bytes a second

int64_t bytes_of(const Bucket& bucket) {
  return bucket.elements * static_cast<int64_t>(c10::elementSize(bucket.dtype));
}

// Returns memory for a sum. On the CPU it is not that of the allocator, because a backend may hold
// it a little longer than the operation takes.
at::Tensor room_for(int64_t bytes, c10::Device device) {
  const int64_t elements = bytes / 4;
  if (!device.is_cpu()) return at::zeros({elements}, at::TensorOptions(device));
  const auto memory = std::make_shared<std::vector<float>>(static_cast<size_t>(elements));
  return at::from_blob(
      memory->data(), {elements}, [memory](void*) {}, at::kFloat);
}

// Returns the shortest time of the operation that `start` starts: other work on the machine makes
// single ones longer.
template <class Start>
int64_t time_of(Ranks& ranks, Start&& start) {
  int64_t shortest = std::numeric_limits<int64_t>::max();
  for (int repeat = 0; repeat <= kRepeats; ++repeat) {
    const auto begun = std::chrono::steady_clock::now();
    start();
    ranks.wait(kMeasuredSum);
    const std::chrono::nanoseconds passed = std::chrono::steady_clock::now() - begun;
    // The first run opens connections.
    if (repeat > 0) shortest = std::min<int64_t>(shortest, passed.count());
  }
  return shortest;
}

Channel channel_through(int64_t small, int64_t large, int64_t small_time, int64_t large_time) {
  Channel channel{.from = 0, .to = 1, .bytes_per_second = kFastest};
  if (large_time > small_time && large > small) {
    const double rate =
        static_cast<double>(large - small) * 1e9 / static_cast<double>(large_time - small_time);
    channel.bytes_per_second = std::clamp<int64_t>(static_cast<int64_t>(rate), 1, kFastest);
  }
  const double carried =
      static_cast<double>(small) * 1e9 / static_cast<double>(channel.bytes_per_second);
  channel.latency = Nanos(std::max<int64_t>(0, small_time - static_cast<int64_t>(carried)));
  return channel;
}

const std::string& memory_of(const Sum& sum) {
  static const std::string ranks = kRanks, shards = kShards;
  return sum.exchanges ? shards : ranks;
}

// Returns the sums by the works that start them.
std::map<int32_t, Sum> starts_of(const Buckets& buckets) {
  std::map<int32_t, Sum> starts;
  for (size_t b = 0; b < buckets.all.size(); ++b) {
    starts[buckets.all[b].start] = {b, false};
    if (buckets.sharded) starts[buckets.all[b].gather] = {b, true};
  }
  return starts;
}

// The positions of earlier copies are those in the plan before.
void renumber(std::vector<Action>& actions, const std::vector<int64_t>& position) {
  for (Action& action : actions) {
    for (int64_t& earlier : action.after) earlier = position[earlier];
  }
}

// Returns for each op the shortest time of the ops that have to run before it, and its own. Only
// ops that alone make a value are known to run.
class Ancestors {
 public:
  explicit Ancestors(const Graph& graph) : graph_(graph), maker_(graph.values.size(), -1) {
    for (size_t o = 0; o < graph.ops.size(); ++o) {
      for (const Variant& variant : graph.ops[o].variants) {
        for (const ValueIndex value : variant.writes) {
          OpIndex& maker = maker_[value];
          const auto op = static_cast<OpIndex>(o);
          maker = maker == -1 || maker == op ? op : kSeveral;
        }
      }
    }
  }

  Nanos time_until(OpIndex op) const {
    std::vector<char> seen(graph_.ops.size(), 0);
    std::vector<OpIndex> open{op};
    seen[op] = 1;
    Nanos time;
    while (!open.empty()) {
      const Op& next = graph_.ops[open.back()];
      open.pop_back();
      Nanos fastest = next.variants.front().time;
      std::vector<ValueIndex> read = next.variants.front().reads;
      for (const Variant& variant : next.variants) {
        fastest = std::min(fastest, variant.time);
        std::erase_if(read, [&](ValueIndex v) {
          return std::find(variant.reads.begin(), variant.reads.end(), v) == variant.reads.end();
        });
      }
      time += fastest;
      for (const ValueIndex value : read) {
        const OpIndex maker = maker_[value];
        if (maker < 0 || std::exchange(seen[maker], 1) != 0) continue;
        open.push_back(maker);
      }
    }
    return time;
  }

 private:
  static constexpr OpIndex kSeveral = -2;
  const Graph& graph_;
  std::vector<OpIndex> maker_;
};

}  // namespace

Machine measure_link(Ranks& ranks, const Buckets& buckets, c10::Device device) {
  int64_t largest = 256;
  for (const Bucket& bucket : buckets.all) largest = std::max(largest, bytes_of(bucket));
  const int64_t large = std::min(largest, kLargest), small = std::min(large / 4, kSmallest);
  std::vector<int64_t> times;
  for (const int64_t bytes : {small, large}) {
    const at::Tensor room = room_for(bytes, device);
    times.push_back(time_of(
        ranks, [&] { ranks.start_sum(kMeasuredSum, room, "a sum that measures the link"); }));
  }
  for (const int64_t bytes : {small, large}) {
    if (!buckets.sharded) continue;
    const at::Tensor room = room_for(bytes, device);
    std::vector<std::pair<int64_t, int64_t>> parts;
    const int64_t each = room.numel() / ranks.size();
    for (int rank = 0; rank < ranks.size(); ++rank) parts.emplace_back(rank * each, each);
    times.push_back(time_of(ranks, [&] {
      ranks.start_gather(kMeasuredSum, room, parts, "an exchange that measures the link");
    }));
  }
  ranks.maxima(times, device, "the exchange of the link's times");
  Machine machine;
  machine.memories.push_back({kRanks});
  machine.channels.push_back(channel_through(small, large, times[0], times[1]));
  if (!buckets.sharded) return machine;
  machine.memories.push_back({kShards});
  machine.channels.push_back(channel_through(small, large, times[2], times[3]));
  machine.channels.back().to = 2;
  machine.channels.back().shares = 0;
  return machine;
}

Machine with_link(Machine machine, const Machine& link) {
  if (find_memory(machine, kRanks) > 0) return machine;
  const auto memories = static_cast<int32_t>(machine.memories.size()) - 1;
  const auto channels = static_cast<int32_t>(machine.channels.size());
  machine.memories.insert(machine.memories.end(), link.memories.begin() + 1, link.memories.end());
  for (Channel channel : link.channels) {
    channel.to += memories;
    if (channel.shares >= 0) channel.shares += channels;
    machine.channels.push_back(channel);
  }
  return machine;
}

Machine without_link(Machine machine) {
  const int32_t first = find_memory(machine, kRanks);
  if (first <= 0) return machine;
  std::erase_if(machine.channels, [&](const Channel& c) { return c.to >= first; });
  machine.memories.resize(first);
  return machine;
}

bool is_sum(const Action& action) {
  const auto is_there = [](const std::string& memory) {
    return memory == kRanks || memory == kShards;
  };
  return action.kind != ActionKind::kRun && (is_there(action.at) || is_there(action.to));
}

std::map<ValueIndex, Sum> sums_of(const LoweredStep& lowered, const Buckets& buckets) {
  const std::map<int32_t, Sum> starts = starts_of(buckets);
  std::map<ValueIndex, Sum> sums;
  for (size_t o = 0; o < lowered.works.size(); ++o) {
    const auto found = starts.find(lowered.works[o].front());
    if (found == starts.end()) continue;
    sums[lowered.graph.ops[o].variants.front().writes.at(0)] = found->second;
  }
  return sums;
}

void SumCarrier::wait(ValueIndex value, int32_t /*memory*/) {
  const Sum& sum = sums_.at(value);
  sum.exchanges ? averager_->wait_gather(sum.bucket) : averager_->wait(sum.bucket);
}

std::vector<Action> with_sums(const LoweredStep& lowered, const Graph& graph,
                              const Buckets& buckets, const std::vector<Action>& actions,
                              const Machine& machine) {
  const std::map<ValueIndex, Sum> sums = sums_of(lowered, buckets);
  const std::vector<BoundAction> bound = bind(graph, actions, machine);
  const std::string& device = machine.memories.front().name;
  std::map<ValueIndex, std::string> under_way;  // where the value is summed
  std::vector<Action> all;
  std::vector<int64_t> position;
  const auto wait_for = [&](ValueIndex value) {
    const auto found = under_way.find(value);
    if (found == under_way.end()) return;
    all.push_back({ActionKind::kWait, graph.values[value].id, "", found->second});
    all.push_back({ActionKind::kFree, graph.values[value].id, "", found->second});
    under_way.erase(found);
  };
  for (size_t a = 0; a < actions.size(); ++a) {
    const bool runs = bound[a].kind == ActionKind::kRun;
    const Variant* const variant =
        runs ? &graph.ops[bound[a].target].variants[bound[a].variant] : nullptr;
    if (!runs) {
      wait_for(bound[a].target);
    } else {
      for (const ValueIndex value : variant->reads) wait_for(value);
    }
    position.push_back(static_cast<int64_t>(all.size()));
    all.push_back(actions[a]);
    if (!runs) continue;
    for (const ValueIndex value : variant->writes) {
      const auto sum = sums.find(value);
      if (sum == sums.end()) continue;
      const std::string& memory = under_way[value] = memory_of(sum->second);
      all.push_back({ActionKind::kCopy, graph.values[value].id, "", device, memory});
    }
  }
  renumber(all, position);
  return all;
}

PlanResult with_sums(const LoweredStep& lowered, const Graph& graph, const Buckets& buckets,
                     PlanResult result, const Machine& machine) {
  if (!result.plan) return result;
  Plan& plan = *result.plan;
  plan.actions = with_sums(lowered, graph, buckets, plan.actions, machine);
  plan.machine_sha256 = result.machine_sha256 = machine_sha256(machine);
  plan.time = simulate(graph, plan.actions, machine).time;
  plan.lower_bound = result.lower_bound =
      std::max(plan.lower_bound, sums_bound(lowered, graph, buckets, machine));
  plan.termination = result.termination =
      plan.lower_bound == plan.time ? Termination::kOptimal : Termination::kFeasible;
  return result;
}

Plan without_sums(const Graph& graph, Plan plan, const Machine& machine) {
  std::vector<Action> others;
  std::vector<int64_t> position;
  for (Action& action : plan.actions) {
    position.push_back(static_cast<int64_t>(others.size()));
    if (!is_sum(action)) others.push_back(std::move(action));
  }
  if (others.size() == plan.actions.size()) {
    plan.actions = std::move(others);
    return plan;
  }
  renumber(others, position);
  plan.actions = std::move(others);
  const Machine rest = without_link(machine);
  plan.machine_sha256 = rest.channels.empty() ? "" : machine_sha256(rest);
  plan.time = simulate(graph, plan.actions, rest).time;
  plan.lower_bound = std::min(plan.lower_bound, plan.time);
  plan.termination = plan.lower_bound == plan.time ? Termination::kOptimal : Termination::kFeasible;
  return plan;
}

Nanos sums_bound(const LoweredStep& lowered, const Graph& graph, const Buckets& buckets,
                 const Machine& machine) {
  const std::map<ValueIndex, Sum> sums = sums_of(lowered, buckets);
  const Ancestors ancestors(graph);
  const bool in_a_row = !has_devices(machine);  // Several devices may share the ops before a sum.
  // The ops that start what the link carries, in their order, and how long it carries each.
  std::vector<std::pair<OpIndex, Nanos>> starts;
  for (size_t o = 0; o < graph.ops.size(); ++o) {
    for (const ValueIndex value : graph.ops[o].variants.front().writes) {
      const auto found = sums.find(value);
      if (found == sums.end()) continue;
      const int32_t channel =
          find_channel(machine, 0, find_memory(machine, memory_of(found->second)));
      starts.emplace_back(static_cast<OpIndex>(o),
                          copy_time(machine.channels[channel], graph.values[value].bytes));
    }
  }
  Nanos bound, carried;
  for (auto start = starts.rbegin(); start != starts.rend(); ++start) {
    carried += start->second;
    const Nanos before = in_a_row ? ancestors.time_until(start->first) : Nanos();
    bound = std::max(bound, before + carried);
  }
  return bound;
}

}  // namespace reprise::runtime::internal::graph
