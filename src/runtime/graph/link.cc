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

// A Mark says what an op is to the link: it starts what goes to a memory, or waits for it.
struct Mark {
  bool starts = false;
  int32_t memory = 0;
  size_t bucket = 0;
};

std::map<int32_t, Mark> marks_of(const Buckets& buckets) {
  std::map<int32_t, Mark> marks;  // by work
  for (size_t b = 0; b < buckets.all.size(); ++b) {
    const Bucket& bucket = buckets.all[b];
    marks[bucket.start] = {true, 1, b};
    marks[bucket.wait] = {false, 1, b};
    if (!buckets.sharded) continue;
    marks[bucket.gather] = {true, 2, b};
    marks[bucket.gathered] = {false, 2, b};
  }
  return marks;
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

bool is_link(const Machine& machine) {
  return machine.memories.size() > 1 && machine.memories[1].name == kRanks;
}

bool uses_link(const Plan& plan) {
  return std::any_of(plan.actions.begin(), plan.actions.end(), [](const Action& action) {
    return action.kind == ActionKind::kCopy && (action.to == kRanks || action.to == kShards);
  });
}

std::vector<Action> with_link(const LoweredStep& lowered, const Graph& graph,
                              const Buckets& buckets, const std::vector<Action>& actions,
                              const Machine& link) {
  const std::map<int32_t, Mark> marks = marks_of(buckets);
  const std::vector<BoundAction> bound = bind(graph, actions, {});
  std::map<std::pair<int32_t, size_t>, std::string> values;  // by memory and bucket
  const std::string& device = link.memories.front().name;
  std::vector<Action> all;
  for (size_t a = 0; a < actions.size(); ++a) {
    std::optional<Mark> mark;
    if (bound[a].kind == ActionKind::kRun) {
      const auto op = static_cast<size_t>(bound[a].target);
      const auto found = marks.find(lowered.works[op][bound[a].variant]);
      if (found != marks.end()) mark = found->second;
    }
    if (mark && !mark->starts) {
      const std::string& value = values.at({mark->memory, mark->bucket});
      const std::string& there = link.memories[mark->memory].name;
      all.push_back({ActionKind::kWait, value, "", there});
      all.push_back({ActionKind::kFree, value, "", there});
    }
    all.push_back(actions[a]);
    if (mark && mark->starts) {
      const Variant& variant = graph.ops[bound[a].target].variants[bound[a].variant];
      const std::string& value = graph.values[variant.writes.at(0)].id;
      values[{mark->memory, mark->bucket}] = value;
      all.push_back({ActionKind::kCopy, value, "", device, link.memories[mark->memory].name});
    }
  }
  return all;
}

Plan without_link(const Graph& graph, Plan plan) {
  std::erase_if(plan.actions, [](const Action& action) {
    return action.to == kRanks || action.to == kShards || action.at == kRanks ||
           action.at == kShards;
  });
  plan.machine_sha256.clear();
  plan.time = simulate(graph, plan.actions).time;
  plan.lower_bound = std::min(plan.lower_bound, plan.time);
  plan.termination = plan.lower_bound == plan.time ? Termination::kOptimal : Termination::kFeasible;
  return plan;
}

Nanos link_bound(const LoweredStep& lowered, const Graph& graph, const Buckets& buckets,
                 const Machine& link) {
  const std::map<int32_t, Mark> marks = marks_of(buckets);
  const Ancestors ancestors(graph);
  // The ops that start what the link carries, in their order, and how long it carries each.
  std::vector<std::pair<OpIndex, Nanos>> starts;
  for (size_t o = 0; o < graph.ops.size(); ++o) {
    const auto found = marks.find(lowered.works[o].front());
    if (found == marks.end() || !found->second.starts) continue;
    const ValueIndex value = graph.ops[o].variants.front().writes.at(0);
    const auto channel = static_cast<size_t>(found->second.memory) - 1;
    starts.emplace_back(static_cast<OpIndex>(o),
                        copy_time(link.channels[channel], graph.values[value].bytes));
  }
  Nanos bound, carried;
  for (auto start = starts.rbegin(); start != starts.rend(); ++start) {
    carried += start->second;
    bound = std::max(bound, ancestors.time_until(start->first) + carried);
  }
  return bound;
}

PlanResult shown_on_link(const LoweredStep& lowered, const Graph& graph, const Buckets& buckets,
                         PlanResult result, const Machine& link) {
  if (!result.plan) return result;
  Plan& plan = *result.plan;
  plan.actions = with_link(lowered, graph, buckets, plan.actions, link);
  plan.machine_sha256 = result.machine_sha256 = machine_sha256(link);
  plan.time = simulate(graph, plan.actions, link).time;
  plan.lower_bound = result.lower_bound =
      std::max(plan.lower_bound, link_bound(lowered, graph, buckets, link));
  plan.termination = result.termination =
      plan.lower_bound == plan.time ? Termination::kOptimal : Termination::kFeasible;
  return result;
}

void show_on_link(RunLog& log, const Plan& runs, const Plan& shown) {
  std::vector<int64_t> positions(runs.actions.size(), -1);
  size_t next = 0;
  for (size_t a = 0; a < runs.actions.size(); ++a) {
    while (shown.actions[next] != runs.actions[a]) ++next;
    positions[a] = static_cast<int64_t>(next++);
  }
  for (RunLogEntry& entry : log.actions) entry.action = positions[entry.action];
  log.planned.time = shown.time;
}

}  // namespace reprise::runtime::internal::graph
