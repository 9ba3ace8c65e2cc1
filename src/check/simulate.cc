#include "reprise/check/simulate.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <utility>

#include "model/id_index.h"
#include "model/place_map.h"
#include "reprise/model/errors.h"

namespace reprise {
namespace {

[[noreturn]] void fail(size_t action, const std::string& message) {
  throw InputError(message, {.pointer = fmt::format("/actions/{}", action)});
}

// Walk is the state of a walk over the actions, one at a time.
class Walk {
 public:
  Walk(const Graph& graph, const Machine& machine, size_t actions)
      : graph_(graph),
        machine_(machine),
        live_(graph.values.size()),
        levels_(machine.memories.size()),
        clocks_(machine.memories.size()),
        channel_free_(machine.channels.size()),
        queues_(machine.channels.size()) {
    timeline_.steps.reserve(actions);
    levels_[0] = graph.fixed;
    for (size_t v = 0; v < graph.values.size(); ++v) {
      const Value& value = graph.values[v];
      if (value.kind != ValueKind::kInput) continue;
      hold(static_cast<ValueIndex>(v), find_memory(machine, value.home));
    }
    timeline_.initial = levels_[0];
    timeline_.peaks = levels_;
    timeline_.peak_actions.assign(levels_.size(), -1);
  }

  void step(const BoundAction& action) { timeline_.steps.push_back(perform(action)); }

  Timeline take() {
    timeline_.peak = timeline_.peaks[0];
    timeline_.peak_action = timeline_.peak_actions[0];
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
      case ActionKind::kSend:
        return send(action);
      case ActionKind::kReceive:
        return receive(action);
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
    int64_t message = -1;   // if that copy is a message: its position in messages_
  };

  struct Message {
    BoundAction ends;
    int64_t action = 0;                           // the send
    std::optional<Nanos> sent = {}, posted = {};  // when the sender and the receiver got to it
    std::optional<Nanos> end = {};
    bool waited = false;  // at one of its ends
  };

  Place& place(ValueIndex value, int32_t memory) { return places_[{value, memory}]; }
  const Place* find_place(ValueIndex value, int32_t memory) const {
    if (places_.empty()) return nullptr;
    const auto found = places_.find({value, memory});
    return found == places_.end() ? nullptr : &found->second;
  }
  bool there(ValueIndex value, int32_t memory) const { return live_.get(value, memory) != 0; }
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
    if (during > timeline_.peaks[memory]) {
      timeline_.peaks[memory] = during;
      timeline_.peak_actions[memory] = static_cast<int64_t>(position());
    }
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
    require_away("copies", action);
    Place& source = place(value, action.at);
    require_open(action, source);
    if (!queues_[queue_of(machine_, action.channel)].empty()) {
      fail(position(), fmt::format("copies {} behind a message that cannot start yet",
                                   graph_.values[value].id));
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
    Nanos over;
    if (const auto found = places_.find({value, memory}); found != places_.end()) {
      Place& target = found->second;
      const auto sent = sent_.find({value, memory});
      if (sent != sent_.end()) {
        for (const size_t message : sent->second) over = std::max(over, end_of(messages_[message]));
      }
      if (target.arriving || sent != sent_.end()) {
        device = waiting_device(machine_, target.from, memory);
      }
      if (target.arriving) {
        if (target.message < 0) --place(value, target.from).leaving;
        if (target.message >= 0) end_of(messages_[target.message]);
        over = std::max(over, target.arrival);
        target.arriving = false;
      }
    }
    return pass(device, levels_[device], std::max(over, clocks_[device]) - clocks_[device]);
  }

  // Waits for a message: returns when it is over.
  Nanos end_of(Message& message) {
    const ValueIndex value = message.ends.target;
    if (!message.end) {
      fail(position(), fmt::format("waits for the message {} to {}, which cannot start yet",
                                   graph_.values[value].id, name(message.ends.to)));
    }
    if (!std::exchange(message.waited, true)) --place(value, message.ends.at).leaving;
    return *message.end;
  }

  // Returns the message of a send or a receive: one whose other end is there, or a new one.
  size_t message_of(const BoundAction& action) {
    const auto other = half_.find({action.target, action.to});
    if (other == half_.end()) {
      half_[{action.target, action.to}] = messages_.size();
      messages_.push_back({.ends = action});
      return messages_.size() - 1;
    }
    const size_t found = other->second;
    const Message& message = messages_[found];
    if (message.ends.at != action.at || message.ends.kind == action.kind) {
      fail(position(), fmt::format("is another {} of {} to {}", to_string(action.kind),
                                   graph_.values[action.target].id, name(action.to)));
    }
    half_.erase(other);
    return found;
  }

  TimelineStep send(const BoundAction& action) {
    require_there("sends", action.target, action.at);
    Place& source = place(action.target, action.at);
    require_open(action, source);
    const size_t index = message_of(action);
    messages_[index].action = static_cast<int64_t>(position());
    messages_[index].sent = clocks_[action.at];
    ++source.leaving;
    sent_[{action.target, action.at}].push_back(index);
    queues_[queue_of(machine_, action.channel)].push_back(index);
    carry(action.channel);
    return pass(action.at, levels_[action.at]);
  }

  // The room is taken from now on.
  TimelineStep receive(const BoundAction& action) {
    require_away("receives", action);
    const size_t index = message_of(action);
    messages_[index].posted = clocks_[action.to];
    place(action.target, action.to) = {
        .arriving = true, .from = action.at, .message = static_cast<int64_t>(index)};
    hold(action.target, action.to);
    carry(action.channel);
    return pass(action.to, levels_[action.to]);
  }

  // Lets the queue of a channel carry the messages for which there is room.
  void carry(int32_t channel) {
    const int32_t queue = queue_of(machine_, channel);
    for (auto& waiting = queues_[queue]; !waiting.empty(); waiting.pop_front()) {
      Message& message = messages_[waiting.front()];
      if (!message.posted) return;
      const ValueIndex value = message.ends.target;
      Place& source = place(value, message.ends.at);
      Nanos& free = channel_free_[queue];
      Transfer transfer{.action = message.action, .value = value, .channel = message.ends.channel};
      transfer.issued = std::max(*message.sent, *message.posted);
      transfer.start = std::max({transfer.issued, source.arrival, free});
      transfer.end = free =
          transfer.start + copy_time(machine_.channels[message.ends.channel], bytes(value));
      message.end = transfer.end;
      source.left = std::max(source.left, transfer.end);
      place(value, message.ends.to).arrival = transfer.end;
      timeline_.transfers.push_back(transfer);
    }
  }

  std::string where(int32_t memory) const { return memory == 0 ? "" : " in " + name(memory); }

  void require_there(const char* what, ValueIndex value, int32_t memory) const {
    if (there(value, memory)) return;
    fail(position(),
         fmt::format("{} {}, which is not live{}", what, graph_.values[value].id, where(memory)));
  }

  void require_away(const char* what, const BoundAction& action) const {
    if (!there(action.target, action.to)) return;
    fail(position(), fmt::format("{} {} to {}, where it is", what, graph_.values[action.target].id,
                                 name(action.to)));
  }

  // A copy or a message cannot read a value whose own message cannot start yet.
  void require_open(const BoundAction& action, const Place& source) const {
    if (source.message < 0 || messages_[source.message].end) return;
    fail(position(), fmt::format("moves {} on, whose message to {} cannot start yet",
                                 graph_.values[action.target].id, name(action.at)));
  }

  // No copy of the value that nobody has waited for comes to this memory or leaves it.
  void require_still(ValueIndex value, int32_t memory) const {
    if (!arriving(value, memory) && !leaving(value, memory)) return;
    fail(position(), fmt::format("gives back {} in {} while a copy of it may be under way; wait "
                                 "for the copy first",
                                 graph_.values[value].id, name(memory)));
  }

  void hold(ValueIndex value, int32_t memory) {
    live_.at(value, memory) = 1;
    levels_[memory] += bytes(value);
  }

  // The bytes are there again when the copies of the value are over, which another device may have
  // waited for.
  void take(ValueIndex value, int32_t memory) {
    live_.at(value, memory) = 0;
    levels_[memory] -= bytes(value);
    if (const Place* found = find_place(value, memory)) {
      clocks_[memory] = std::max({clocks_[memory], found->arrival, found->left});
      places_.erase({value, memory});
      if (!sent_.empty()) sent_.erase({value, memory});
    }
  }

  const Graph& graph_;
  const Machine& machine_;
  internal::model::PlaceMap<char> live_;
  std::vector<Bytes> levels_;  // by memory
  // By memory: when a device has done its runs, and when a memory behind the devices has given back
  // what was freed there. On a machine with one device, the latter is never later than the former.
  std::vector<Nanos> clocks_;
  std::map<std::pair<ValueIndex, int32_t>, Place> places_;
  std::vector<Nanos> channel_free_;  // by the first channel of a queue
  std::map<int64_t, Nanos> ends_;    // of copies, by action
  std::vector<Message> messages_;
  std::map<std::pair<ValueIndex, int32_t>, std::vector<size_t>> sent_;  // messages, by source
  std::map<std::pair<ValueIndex, int32_t>, size_t> half_;  // messages with one end, by target
  std::vector<std::deque<size_t>> queues_;                 // messages that were sent, by queue
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
  if (!has_two_ends(bound.kind)) return;
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
  IdIndex index(graph);
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
  const std::optional<Graph> placed = as_placed(graph, actions);
  const Graph& here = placed ? *placed : graph;
  return simulate(here, bind(here, actions, machine), machine);
}

Timeline simulate(const Graph& graph, const std::vector<BoundAction>& actions,
                  const Machine& machine) {
  Walk walk(graph, machine, actions.size());
  for (const BoundAction& action : actions) walk.step(action);
  return walk.take();
}

Timeline simulate(const Graph& graph, const Plan& plan, const Machine& machine) {
  return simulate(graph, plan.actions, machine);
}

Baseline baseline(const Graph& graph) {
  validate(graph);
  if (has_homes(graph)) return baseline(with_all_on_device(graph));
  const Timeline timeline = simulate(graph, with_bound_frees(graph, plain_runs(graph)));
  return {timeline.peak, timeline.time};
}

}  // namespace reprise
