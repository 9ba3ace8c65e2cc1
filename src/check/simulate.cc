#include "reprise/check/simulate.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "model/id_index.h"
#include "reprise/model/errors.h"

namespace reprise {
namespace {

[[noreturn]] void fail(size_t action, const std::string& message) {
  throw InputError(message, {.pointer = fmt::format("/actions/{}", action)});
}

// Walk is the state of a walk over the actions, one at a time.
class Walk {
 public:
  Walk(const Graph& graph, const Machine& machine)
      : graph_(graph),
        machine_(machine),
        live_(machine.memories.size()),
        levels_(machine.memories.size()),
        clocks_(machine.memories.size()),
        channel_free_(machine.channels.size()) {
    for (std::vector<char>& live : live_) live.assign(graph.values.size(), 0);
    levels_[0] = graph.fixed;
    for (size_t v = 0; v < graph.values.size(); ++v) {
      const Value& value = graph.values[v];
      if (value.kind != ValueKind::kInput) continue;
      hold(static_cast<ValueIndex>(v), find_memory(machine, value.home));
    }
    timeline_.initial = timeline_.peak = levels_[0];
    timeline_.peaks = levels_;
  }

  void step(const BoundAction& action) {
    const TimelineStep step = perform(action);
    if (step.during > timeline_.peak) {
      timeline_.peak = step.during;
      timeline_.peak_action = static_cast<int64_t>(timeline_.steps.size());
    }
    timeline_.steps.push_back(step);
  }

  Timeline take() {
    timeline_.peaks[0] = timeline_.peak;
    timeline_.time = *std::max_element(clocks_.begin(), clocks_.end());
    return std::move(timeline_);
  }

 private:
  TimelineStep perform(const BoundAction& action) {
    switch (action.kind) {
      case ActionKind::kRun:
        return run(graph_.ops[action.target], action.variant, action.at);
      case ActionKind::kFree:
        return free(action.target, action.at);
      case ActionKind::kCopy:
        return copy(action);
      case ActionKind::kWait:
        return wait(action.target, action.at);
    }
    throw InternalError("an action of no kind");
  }

  // A Place says which copies bring a value to a memory and take it away.
  struct Place {
    bool arriving = false;  // nobody has waited for the copy that makes the value there
    Nanos arrival = {};     // when that copy is over
    int32_t from = 0;       // where that copy reads
    int leaving = 0;        // copies of it that nobody has waited for
    Nanos left = {};        // when the last copy out of it is over
  };

  Place& place(ValueIndex value, int32_t memory) { return places_[{value, memory}]; }
  const Place* find_place(ValueIndex value, int32_t memory) const {
    if (places_.empty()) return nullptr;
    const auto found = places_.find({value, memory});
    return found == places_.end() ? nullptr : &found->second;
  }
  bool there(ValueIndex value, int32_t memory) const { return live_[memory][value] != 0; }
  bool arriving(ValueIndex value, int32_t memory) const {
    const Place* found = find_place(value, memory);
    return found != nullptr && found->arriving;
  }
  bool leaving(ValueIndex value, int32_t memory) const {
    const Place* found = find_place(value, memory);
    return found != nullptr && found->leaving > 0;
  }
  const std::string& name(int32_t memory) const { return machine_.memories[memory].name; }

  size_t position() const { return timeline_.steps.size(); }
  Bytes bytes(ValueIndex value) const { return graph_.values[value].bytes; }

  // Returns a step on a memory, which is over `time` after its clock. `during` is what the memory
  // holds then.
  TimelineStep pass(int32_t memory, Bytes during, Nanos time = {}) {
    const Nanos start = clocks_[memory];
    clocks_[memory] += time;
    timeline_.peaks[memory] = std::max(timeline_.peaks[memory], during);
    return {memory == 0 ? during : levels_[0], levels_[0], start, time, memory};
  }

  TimelineStep run(const Op& op, int32_t index, int32_t memory) {
    const Variant& variant = op.variants[index];
    for (const ValueIndex value : variant.reads) {
      if (!there(value, memory)) {
        fail(position(), fmt::format("{} {} reads {}, which is not live{}", op.id, variant.name,
                                     graph_.values[value].id, where(memory)));
      }
      if (arriving(value, memory)) {
        fail(position(), fmt::format("{} {} reads {}, and nobody has waited for its copy", op.id,
                                     variant.name, graph_.values[value].id));
      }
    }
    for (const ValueIndex value : variant.consumes) require_still(value, memory);
    for (const auto& pair : variant.reuses) require_still(pair.second, memory);
    // Values that the run takes are gone before its outputs are counted. So consumed bytes are not
    // counted at all, and reused bytes are counted as the output's.
    for (const ValueIndex value : variant.consumes) take(value, memory);
    for (const auto& pair : variant.reuses) take(pair.second, memory);
    Bytes duplicates;
    for (const ValueIndex value : variant.writes) {
      if (there(value, memory)) {
        duplicates += bytes(value);
      } else {
        hold(value, memory);
      }
    }
    return pass(memory, levels_[memory] + duplicates + variant.workspace, variant.time);
  }

  // The value is live until the end of the free.
  TimelineStep free(ValueIndex value, int32_t memory) {
    require_there("frees", value, memory);
    const Value& freed = graph_.values[value];
    if (freed.kind == ValueKind::kInput && find_memory(machine_, freed.home) == memory) {
      fail(position(), fmt::format("frees the input {}", freed.id));
    }
    require_still(value, memory);
    const Nanos start = clocks_[memory];
    const Bytes before = levels_[0];
    take(value, memory);
    // A memory that does not compute has no runs to hold up.
    if (!computes(machine_, memory)) return {before, levels_[0], clocks_[0], Nanos(0), 0};
    return {before, levels_[0], start, clocks_[memory] - start, memory};
  }

  TimelineStep copy(const BoundAction& action) {
    const ValueIndex value = action.target;
    require_there("copies", value, action.at);
    if (there(value, action.to)) {
      fail(position(),
           fmt::format("copies {} to {}, where it is", graph_.values[value].id, name(action.to)));
    }
    const int32_t device = waiting_device(machine_, action.at, action.to);
    Transfer transfer{.action = static_cast<int64_t>(position()),
                      .value = value,
                      .channel = action.channel,
                      .issued = std::max(clocks_[action.at], clocks_[action.to])};
    // A copy between two memories that do not compute comes after the runs of the first device.
    transfer.issued = std::max(transfer.issued, clocks_[device]);
    Nanos& free = channel_free_[queue_of(machine_, action.channel)];
    transfer.start = std::max(transfer.issued, free);
    Place& source = place(value, action.at);
    transfer.start = std::max(transfer.start, source.arrival);
    for (const int64_t earlier : action.after) {
      transfer.start = std::max(transfer.start, ends_.at(earlier));
    }
    transfer.end = free =
        transfer.start + copy_time(machine_.channels[action.channel], bytes(value));
    ends_[transfer.action] = transfer.end;
    timeline_.transfers.push_back(transfer);
    ++source.leaving;
    source.left = std::max(source.left, transfer.end);
    place(value, action.to) = {.arriving = true, .arrival = transfer.end, .from = action.at};
    hold(value, action.to);
    pass(action.to, levels_[action.to]);
    return {levels_[0], levels_[0], clocks_[device], Nanos(0), device};
  }

  TimelineStep wait(ValueIndex value, int32_t memory) {
    require_there("waits for", value, memory);
    int32_t device = waiting_device(machine_, 0, memory);
    Nanos stall;
    if (arriving(value, memory)) {
      Place& target = place(value, memory);
      target.arriving = false;
      --place(value, target.from).leaving;
      device = waiting_device(machine_, target.from, memory);
      stall = std::max(target.arrival, clocks_[device]) - clocks_[device];
    }
    return pass(device, levels_[device], stall);
  }

  std::string where(int32_t memory) const { return memory == 0 ? "" : " in " + name(memory); }

  void require_there(const char* what, ValueIndex value, int32_t memory) const {
    if (there(value, memory)) return;
    fail(position(),
         fmt::format("{} {}, which is not live{}", what, graph_.values[value].id, where(memory)));
  }

  // No copy of the value that nobody has waited for comes to this memory or leaves it.
  void require_still(ValueIndex value, int32_t memory) const {
    if (!arriving(value, memory) && !leaving(value, memory)) return;
    fail(position(), fmt::format("gives back {} in {} while a copy of it may be under way; wait "
                                 "for the copy first",
                                 graph_.values[value].id, name(memory)));
  }

  void hold(ValueIndex value, int32_t memory) {
    live_[memory][value] = 1;
    levels_[memory] += bytes(value);
  }

  // The bytes are there again when the copies of the value are over, which another device may have
  // waited for.
  void take(ValueIndex value, int32_t memory) {
    live_[memory][value] = 0;
    levels_[memory] -= bytes(value);
    if (const Place* found = find_place(value, memory)) {
      clocks_[memory] = std::max({clocks_[memory], found->arrival, found->left});
      places_.erase({value, memory});
    }
  }

  const Graph& graph_;
  const Machine& machine_;
  std::vector<std::vector<char>> live_;  // by memory and value
  std::vector<Bytes> levels_;            // by memory
  // By memory: when a device has done its runs, and when a memory behind the devices has given back
  // what was freed there. On a machine with one device, the latter is never later than the former.
  std::vector<Nanos> clocks_;
  std::map<std::pair<ValueIndex, int32_t>, Place> places_;
  std::vector<Nanos> channel_free_;  // by the first channel of a queue
  std::map<int64_t, Nanos> ends_;    // of copies, by action
  Timeline timeline_;
};

int32_t memory_of(const Machine& machine, size_t action, const std::string& name) {
  const int32_t memory = find_memory(machine, name);
  if (memory >= 0) return memory;
  fail(action, fmt::format("the machine has no memory \"{}\"; a plan that moves values is judged "
                           "with the machine that it was made for",
                           name));
}

int32_t device_of(const Machine& machine, size_t a, const Action& run, const Variant& variant) {
  if (variant.at.empty()) return 0;
  const int32_t memory = find_memory(machine, variant.at);
  if (memory >= 0 && computes(machine, memory)) return memory;
  fail(a, fmt::format("{} {} runs on \"{}\", and the machine has no such device", run.id,
                      run.variant, variant.at));
}

// Looks up what is only in copies, waits and frees.
void bind_memories(const Machine& machine, const std::vector<Action>& actions, size_t a,
                   BoundAction& bound) {
  bound.at = memory_of(machine, a, actions[a].at);
  if (actions[a].kind != ActionKind::kCopy) return;
  bound.to = memory_of(machine, a, actions[a].to);
  bound.channel = find_channel(machine, bound.at, bound.to);
  if (bound.channel < 0) {
    fail(a, fmt::format("the machine has no channel from {} to {}", actions[a].at, actions[a].to));
  }
  bound.after = actions[a].after;
  for (const int64_t earlier : bound.after) {
    if (earlier >= 0 && earlier < static_cast<int64_t>(a) &&
        actions[earlier].kind == ActionKind::kCopy) {
      continue;
    }
    fail(a, fmt::format("comes after action {}, which is no earlier copy", earlier));
  }
}

}  // namespace

std::vector<BoundAction> bind(const Graph& graph, const std::vector<Action>& actions,
                              const Machine& machine) {
  const IdIndex index(graph);
  std::vector<BoundAction> bound;
  bound.reserve(actions.size());
  for (size_t a = 0; a < actions.size(); ++a) {
    const Action& action = actions[a];
    const FoundAction found = index.find(action);
    if (found.target < 0) {
      fail(a,
           fmt::format("the problem \"{}\" has no {} \"{}\"", graph.name, found.what, action.id));
    }
    if (found.variant < 0) {
      fail(a, fmt::format("operation \"{}\" has no variant \"{}\"", action.id, action.variant));
    }
    bound.push_back({action.kind, found.target, found.variant});
    if (action.kind == ActionKind::kRun) {
      const Variant& variant = graph.ops[found.target].variants[found.variant];
      bound.back().at = device_of(machine, a, action, variant);
    } else {
      bind_memories(machine, actions, a, bound.back());
    }
  }
  return bound;
}

void require_homes(const Graph& graph, const Machine& machine) {
  for (size_t v = 0; v < graph.values.size(); ++v) {
    const Value& value = graph.values[v];
    if (value.home.empty() || find_memory(machine, value.home) > 0) continue;
    throw InputError(
        fmt::format("the home of \"{}\" is \"{}\", and the machine has no such memory behind the "
                    "device; give the machine that the graph is for",
                    value.id, value.home),
        {.pointer = fmt::format("/values/{}/home", v)});
  }
}

Timeline simulate(const Graph& graph, const std::vector<Action>& actions, const Machine& machine) {
  validate(graph);
  validate(machine);
  require_homes(graph, machine);
  return simulate(graph, bind(graph, actions, machine), machine);
}

Timeline simulate(const Graph& graph, const std::vector<BoundAction>& actions,
                  const Machine& machine) {
  Walk walk(graph, machine);
  for (const BoundAction& action : actions) walk.step(action);
  return walk.take();
}

Timeline simulate(const Graph& graph, const Plan& plan, const Machine& machine) {
  return simulate(graph, plan.actions, machine);
}

Baseline baseline(const Graph& graph) {
  validate(graph);
  if (has_homes(graph)) return baseline(with_all_on_device(graph));
  const Timeline timeline = simulate(graph, with_frees(graph, plain_runs(graph)));
  return {timeline.peak, timeline.time};
}

}  // namespace reprise
