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
        live_(graph.values.size(), 0),
        levels_elsewhere_(machine.memories.size()),
        channel_free_(machine.channels.size()) {
    level_ = graph.fixed;
    for (size_t v = 0; v < graph.values.size(); ++v) {
      const Value& value = graph.values[v];
      if (value.kind != ValueKind::kInput) continue;
      if (starts_on_device(value)) {
        live_[v] = 1;
        level_ += value.bytes;
      } else {
        const int32_t home = find_memory(machine, value.home);
        place(static_cast<ValueIndex>(v), home).there = true;
        levels_elsewhere_[home] += value.bytes;
      }
    }
    timeline_.initial = timeline_.peak = level_;
    timeline_.peaks = levels_elsewhere_;
  }

  void step(const BoundAction& action) {
    const TimelineStep step = perform(action);
    if (step.during > timeline_.peak) {
      timeline_.peak = step.during;
      timeline_.peak_action = static_cast<int64_t>(timeline_.steps.size());
    }
    timeline_.time += step.time;
    timeline_.steps.push_back(step);
  }

  Timeline take() {
    timeline_.peaks[0] = timeline_.peak;
    return std::move(timeline_);
  }

 private:
  TimelineStep perform(const BoundAction& action) {
    switch (action.kind) {
      case ActionKind::kRun:
        return run(graph_.ops[action.target], action.variant);
      case ActionKind::kFree:
        return free(action.target, action.at);
      case ActionKind::kCopy:
        return copy(action);
      case ActionKind::kWait:
        return wait(action.target, action.at);
    }
    throw InternalError("an action of no kind");
  }

  // A value in a memory, of which copies come or go.
  struct Place {
    bool there = false;     // elsewhere than on the device: it is there or on its way
    bool arriving = false;  // nobody has waited for the copy that makes it
    Nanos arrival;
    int32_t from = 0;  // where that copy reads
    int leaving = 0;   // copies of it that nobody has waited for
  };

  Place& place(ValueIndex value, int32_t memory) { return places_[{value, memory}]; }
  bool there(ValueIndex value, int32_t memory) const {
    if (memory == 0) return live_[value] != 0;
    const auto found = places_.find({value, memory});
    return found != places_.end() && found->second.there;
  }
  bool arriving(ValueIndex value, int32_t memory) const {
    const auto found = places_.find({value, memory});
    return found != places_.end() && found->second.arriving;
  }
  bool leaving(ValueIndex value, int32_t memory) const {
    const auto found = places_.find({value, memory});
    return found != places_.end() && found->second.leaving > 0;
  }
  const std::string& name(int32_t memory) const { return machine_.memories[memory].name; }

  size_t position() const { return timeline_.steps.size(); }
  Bytes bytes(ValueIndex value) const { return graph_.values[value].bytes; }

  TimelineStep run(const Op& op, int32_t index) {
    const Variant& variant = op.variants[index];
    for (const ValueIndex value : variant.reads) {
      if (!live_[value]) {
        fail(position(), fmt::format("{} {} reads {}, which is not live", op.id, variant.name,
                                     graph_.values[value].id));
      }
      if (arriving(value, 0)) {
        fail(position(), fmt::format("{} {} reads {}, and nobody has waited for its copy", op.id,
                                     variant.name, graph_.values[value].id));
      }
    }
    for (const ValueIndex value : variant.consumes) require_still(value, 0);
    for (const auto& pair : variant.reuses) require_still(pair.second, 0);
    // Values that the run takes are gone before its outputs are counted. So consumed bytes are not
    // counted at all, and reused bytes are counted as the output's.
    for (const ValueIndex value : variant.consumes) take(value);
    for (const auto& pair : variant.reuses) take(pair.second);
    Bytes duplicates;
    for (const ValueIndex value : variant.writes) {
      if (live_[value]) {
        duplicates += bytes(value);
      } else {
        live_[value] = 1;
        level_ += bytes(value);
      }
    }
    return {level_ + duplicates + variant.workspace, level_, timeline_.time, variant.time};
  }

  // The value is live until the end of the free.
  TimelineStep free(ValueIndex value, int32_t memory) {
    require_there("frees", value, memory);
    const Value& freed = graph_.values[value];
    if (freed.kind == ValueKind::kInput && find_memory(machine_, freed.home) == memory) {
      fail(position(), fmt::format("frees the input {}", freed.id));
    }
    require_still(value, memory);
    const Bytes before = level_;
    if (memory == 0) {
      take(value);
    } else {
      levels_elsewhere_[memory] -= bytes(value);
      places_.erase({value, memory});
    }
    return {before, level_, timeline_.time, Nanos(0)};
  }

  TimelineStep copy(const BoundAction& action) {
    const ValueIndex value = action.target;
    require_there("copies", value, action.at);
    if (there(value, action.to)) {
      fail(position(),
           fmt::format("copies {} to {}, where it is", graph_.values[value].id, name(action.to)));
    }
    Transfer transfer{.action = static_cast<int64_t>(position()),
                      .value = value,
                      .channel = action.channel,
                      .issued = timeline_.time};
    Nanos& free = channel_free_[queue_of(machine_, action.channel)];
    transfer.start = std::max(timeline_.time, free);
    if (arriving(value, action.at)) {
      transfer.start = std::max(transfer.start, place(value, action.at).arrival);
    }
    for (const int64_t earlier : action.after) {
      transfer.start = std::max(transfer.start, ends_.at(earlier));
    }
    transfer.end = free =
        transfer.start + copy_time(machine_.channels[action.channel], bytes(value));
    ends_[transfer.action] = transfer.end;
    timeline_.transfers.push_back(transfer);
    ++place(value, action.at).leaving;
    place(value, action.to) = {
        .there = true, .arriving = true, .arrival = transfer.end, .from = action.at};
    if (action.to == 0) {
      live_[value] = 1;
      level_ += bytes(value);
    } else {
      Bytes& level = levels_elsewhere_[action.to] += bytes(value);
      timeline_.peaks[action.to] = std::max(timeline_.peaks[action.to], level);
    }
    return {level_, level_, timeline_.time, Nanos(0)};
  }

  TimelineStep wait(ValueIndex value, int32_t memory) {
    require_there("waits for", value, memory);
    Nanos stall;
    if (arriving(value, memory)) {
      Place& target = place(value, memory);
      target.arriving = false;
      --place(value, target.from).leaving;
      stall = std::max(target.arrival, timeline_.time) - timeline_.time;
    }
    return {level_, level_, timeline_.time, stall};
  }

  void require_there(const char* what, ValueIndex value, int32_t memory) const {
    if (there(value, memory)) return;
    const std::string where = memory == 0 ? std::string() : " in " + name(memory);
    fail(position(),
         fmt::format("{} {}, which is not live{}", what, graph_.values[value].id, where));
  }

  // No copy of the value that nobody has waited for comes to this memory or leaves it.
  void require_still(ValueIndex value, int32_t memory) const {
    if (!arriving(value, memory) && !leaving(value, memory)) return;
    fail(position(), fmt::format("gives back {} in {} while a copy of it may be under way; wait "
                                 "for the copy first",
                                 graph_.values[value].id, name(memory)));
  }

  void take(ValueIndex value) {
    live_[value] = 0;
    level_ -= bytes(value);
    if (!places_.empty()) places_.erase({value, 0});
  }

  const Graph& graph_;
  const Machine& machine_;
  std::vector<char> live_;  // on the device
  Bytes level_;
  std::map<std::pair<ValueIndex, int32_t>, Place> places_;
  std::vector<Bytes> levels_elsewhere_;  // by memory
  std::vector<Nanos> channel_free_;      // by the first channel of a queue
  std::map<int64_t, Nanos> ends_;        // of copies, by action
  Timeline timeline_;
};

}  // namespace

namespace {

int32_t memory_of(const Machine& machine, size_t action, const std::string& name) {
  const int32_t memory = find_memory(machine, name);
  if (memory >= 0) return memory;
  fail(action, fmt::format("the machine has no memory \"{}\"; a plan that moves values is judged "
                           "with the machine that it was made for",
                           name));
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
        actions[static_cast<size_t>(earlier)].kind == ActionKind::kCopy) {
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
      fail(a, fmt::format("graph \"{}\" has no {} \"{}\"", graph.name, found.what, action.id));
    }
    if (found.variant < 0) {
      fail(a, fmt::format("operation \"{}\" has no variant \"{}\"", action.id, action.variant));
    }
    bound.push_back({action.kind, found.target, found.variant});
    bind_memories(machine, actions, a, bound.back());
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
  Walk walk(graph, machine);
  for (const BoundAction& action : bind(graph, actions, machine)) walk.step(action);
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
