#include "check/accounting.h"

namespace reprise {
namespace {

// A value is taken when a run consumes it or reuses its memory.
enum class EventKind : char { kWritten, kFreed, kTaken };

struct Event {
  size_t action;
  EventKind kind;
};

void add_run(const Variant& variant, size_t action, std::vector<std::vector<Event>>& events) {
  for (const ValueIndex v : variant.consumes) events[v].push_back({action, EventKind::kTaken});
  for (const auto& [written, v] : variant.reuses) events[v].push_back({action, EventKind::kTaken});
  for (const ValueIndex v : variant.writes) events[v].push_back({action, EventKind::kWritten});
}

// Returns what happens to each value in this memory, in the order of the actions. A copy into the
// memory holds its bytes as a write does.
std::vector<std::vector<Event>> events_by_value(
    const Graph& graph, const std::vector<std::optional<BoundAction>>& actions, int32_t memory) {
  std::vector<std::vector<Event>> events(graph.values.size());
  for (size_t a = 0; a < actions.size(); ++a) {
    if (!actions[a]) continue;
    const BoundAction& action = *actions[a];
    switch (action.kind) {
      case ActionKind::kRun:
        if (action.at == memory)
          add_run(graph.ops[action.target].variants[action.variant], a, events);
        break;
      case ActionKind::kFree:
        if (action.at == memory) events[action.target].push_back({a, EventKind::kFreed});
        break;
      case ActionKind::kCopy:
        if (action.to == memory) events[action.target].push_back({a, EventKind::kWritten});
        break;
      case ActionKind::kWait:
        break;
    }
  }
  return events;
}

// Slots sums up intervals [begin, end) of time slots by the differences at their ends.
class Slots {
 public:
  explicit Slots(size_t actions) : differences_(2 * actions + 2, 0) {}
  void add(size_t begin, size_t end, Bytes bytes) {
    differences_[begin] += bytes.count();
    differences_[end] -= bytes.count();
  }
  size_t end() const { return differences_.size() - 1; }

  Levels levels() const {
    Levels result;
    Wide level = result.initial = differences_[0];
    for (size_t slot = 1; slot < end(); ++slot) {
      level += differences_[slot];
      (slot % 2 == 1 ? result.during : result.after).push_back(level);
    }
    return result;
  }

 private:
  std::vector<Wide> differences_;
};

// `at_home` says whether the value lives in this memory between steps.
void add_lives(const Value& value, const std::vector<Event>& events, bool at_home, Slots& slots) {
  if (value.kind == ValueKind::kInput && at_home) {
    slots.add(0, slots.end(), value.bytes);
    return;
  }
  bool live = false;
  size_t birth = 0;
  for (const Event& event : events) {
    const size_t during = 2 * event.action + 1;
    if (event.kind == EventKind::kWritten) {
      if (live) {  // The op holds a second copy while it runs.
        slots.add(during, during + 1, value.bytes);
      } else {
        live = true;
        birth = during;
      }
    } else if (live) {
      live = false;
      slots.add(birth, event.kind == EventKind::kFreed ? during + 1 : during, value.bytes);
    }
  }
  if (live) slots.add(birth, slots.end(), value.bytes);
}

}  // namespace

Levels interval_levels(const Graph& graph, const std::vector<std::optional<BoundAction>>& actions,
                       const Machine& machine, int32_t memory) {
  Slots slots(actions.size());
  const std::vector<std::vector<Event>> events = events_by_value(graph, actions, memory);
  for (size_t v = 0; v < graph.values.size(); ++v) {
    const bool at_home = find_memory(machine, graph.values[v].home) == memory;
    add_lives(graph.values[v], events[v], at_home, slots);
  }
  if (memory == 0) slots.add(0, slots.end(), graph.fixed);
  for (size_t a = 0; a < actions.size(); ++a) {
    if (!actions[a] || actions[a]->at != memory) continue;
    switch (actions[a]->kind) {
      case ActionKind::kRun: {
        const Variant& variant = graph.ops[actions[a]->target].variants[actions[a]->variant];
        slots.add(2 * a + 1, 2 * a + 2, variant.workspace);
        break;
      }
      case ActionKind::kFree:
      case ActionKind::kCopy:
      case ActionKind::kWait:
        break;
    }
  }
  return slots.levels();
}

}  // namespace reprise
