// Makes random machines, and plans with copies at random places.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "reprise/check/simulate.h"
#include "reprise/model/graph.h"
#include "reprise/model/machine.h"
#include "reprise/model/plan.h"

namespace reprise::testing {

struct RandomMachineOptions {
  int most_memories = 3;     // with the device
  int64_t slowest = 1;       // ns a byte
  int64_t most_latency = 5;  // ns
  bool shared = true;        // some channels take turns
};

// Bandwidths are whole bytes a nanosecond or whole nanoseconds a byte, so that times are small.
inline Machine random_machine(std::mt19937_64& random, const RandomMachineOptions& options = {}) {
  const auto below = [&](int64_t n) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
  };
  Machine machine;
  const int64_t memories = 2 + below(options.most_memories - 1);
  for (int64_t m = 1; m < memories; ++m) {
    machine.memories.push_back({"memory" + std::to_string(m)});
  }
  for (int64_t a = 0; a < memories; ++a) {
    for (int64_t b = 0; b < memories; ++b) {
      if (a == b) continue;
      Channel channel{static_cast<int32_t>(a), static_cast<int32_t>(b), 1, Nanos(0), -1};
      channel.bytes_per_second = 1'000'000'000 / (1 + below(4 * options.slowest));
      if (below(4) == 0) channel.bytes_per_second *= 3;
      channel.latency = Nanos(below(options.most_latency + 1));
      const auto count = static_cast<int64_t>(machine.channels.size());
      if (options.shared && count > 0 && below(3) == 0) {
        channel.shares = static_cast<int32_t>(below(count));
      }
      machine.channels.push_back(channel);
    }
  }
  return machine;
}

// Adds copies to a valid plan without any: values that nobody touches for a while go to a memory
// behind the device at random moments, perhaps on to a third one, and come back in time. The plan
// stays valid but for its bytes.
inline std::vector<Action> with_random_copies(std::mt19937_64& random, const Graph& graph,
                                              const Machine& machine,
                                              const std::vector<Action>& actions) {
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  const std::vector<BoundAction> bound = bind(graph, actions);
  // Before each action, and within that in this order.
  std::vector<std::vector<Action>> before(actions.size() + 1);
  std::vector<int64_t> last(graph.values.size(), -1);  // the last touch of a live value
  for (size_t a = 0; a < actions.size(); ++a) {
    std::vector<ValueIndex> touched;
    std::vector<ValueIndex> written;
    if (bound[a].kind == ActionKind::kRun) {
      const Variant& variant = graph.ops[bound[a].target].variants[bound[a].variant];
      touched = variant.reads;
      written = variant.writes;
    } else {
      last[bound[a].target] = -1;
      continue;
    }
    for (const ValueIndex v : touched) {
      const int64_t from = last[v] + 1;
      const int64_t gap = static_cast<int64_t>(a) - from;
      const bool moves = graph.values[v].kind != ValueKind::kInput && last[v] >= 0 && gap >= 1;
      if (moves && below(2) == 0) {
        // Sorted moments: copy out, leave, [on, back on,] copy back, needed.
        std::vector<size_t> at;
        for (int k = 0; k < 3; ++k) at.push_back(static_cast<size_t>(from) + below(gap + 1));
        std::sort(at.begin(), at.end());
        const std::string device = machine.memories[0].name;
        const std::string& id = graph.values[v].id;
        std::string host = machine.memories[1 + below(machine.memories.size() - 1)].name;
        const auto put = [&](size_t where, Action action) { before[where].push_back(action); };
        const std::string& third =
            machine
                .memories[machine.memories.size() > 2 && host == machine.memories[1].name ? 2 : 1]
                .name;
        const bool on = machine.memories.size() > 2 && below(2) == 0;
        const bool at_once = on && below(2) == 0;  // before it has arrived in the second memory
        put(at[0], {ActionKind::kCopy, id, "", device, host});
        if (at_once) put(at[0], {ActionKind::kCopy, id, "", host, third});
        put(at[1], {ActionKind::kWait, id, "", host});
        put(at[1], {ActionKind::kFree, id, ""});
        if (on) {
          if (!at_once) put(at[1], {ActionKind::kCopy, id, "", host, third});
          put(at[2], {ActionKind::kWait, id, "", third});
          put(at[2], {ActionKind::kFree, id, "", host});
          host = third;
        }
        put(at[2], {ActionKind::kCopy, id, "", host, device});
        put(a, {ActionKind::kWait, id, "", device});
        put(a, {ActionKind::kFree, id, "", host});
      }
    }
    for (const ValueIndex v : touched) last[v] = static_cast<int64_t>(a);
    for (const ValueIndex v : written) last[v] = static_cast<int64_t>(a);
    const Variant& variant = graph.ops[bound[a].target].variants[bound[a].variant];
    for (const ValueIndex v : variant.consumes) last[v] = -1;
    for (const auto& pair : variant.reuses) last[pair.second] = -1;
    for (const ValueIndex v : written) last[v] = static_cast<int64_t>(a);
  }
  std::vector<Action> result;
  std::vector<int64_t> copies;
  for (size_t a = 0; a <= actions.size(); ++a) {
    for (Action& action : before[a]) {
      if (action.kind == ActionKind::kCopy) {
        if (!copies.empty() && below(4) == 0) action.after = {copies[below(copies.size())]};
        copies.push_back(static_cast<int64_t>(result.size()));
      }
      result.push_back(std::move(action));
    }
    if (a < actions.size()) result.push_back(actions[a]);
  }
  return result;
}

}  // namespace reprise::testing
