#include "check/accounting.h"

namespace reprise {
namespace {

enum class EventKind : char { kWritten, kFreed, kTaken };  // taken: consumed or reused

struct Event {
  size_t action;
  EventKind kind;
};

// What happens to each value, in the order of the actions.
std::vector<std::vector<Event>> events_by_value(
    const Graph& graph, const std::vector<std::optional<BoundAction>>& actions) {
  std::vector<std::vector<Event>> events(graph.values.size());
  for (size_t a = 0; a < actions.size(); ++a) {
    if (!actions[a]) continue;
    if (actions[a]->kind == ActionKind::kFree) {
      events[actions[a]->target].push_back({a, EventKind::kFreed});
      continue;
    }
    const Variant& variant = graph.ops[actions[a]->target].variants[actions[a]->variant];
    for (const ValueIndex value : variant.consumes) events[value].push_back({a, EventKind::kTaken});
    for (const auto& pair : variant.reuses) events[pair.second].push_back({a, EventKind::kTaken});
    for (const ValueIndex value : variant.writes) events[value].push_back({a, EventKind::kWritten});
  }
  return events;
}

// Sums of intervals [begin, end) of slots, by the differences at their ends.
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

void add_lives(const Value& value, const std::vector<Event>& events, Slots& slots) {
  if (value.kind == ValueKind::kInput) {
    slots.add(0, slots.end(), value.bytes);
    return;
  }
  bool live = false;
  size_t birth = 0;
  for (const Event& event : events) {
    const size_t during = 2 * event.action + 1;
    if (event.kind == EventKind::kWritten) {
      if (live) {  // a second copy, for as long as the op runs
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

Levels interval_levels(const Graph& graph, const std::vector<std::optional<BoundAction>>& actions) {
  Slots slots(actions.size());
  slots.add(0, slots.end(), graph.fixed);
  const std::vector<std::vector<Event>> events = events_by_value(graph, actions);
  for (size_t v = 0; v < graph.values.size(); ++v) add_lives(graph.values[v], events[v], slots);
  for (size_t a = 0; a < actions.size(); ++a) {
    if (!actions[a] || actions[a]->kind != ActionKind::kRun) continue;
    const Variant& variant = graph.ops[actions[a]->target].variants[actions[a]->variant];
    slots.add(2 * a + 1, 2 * a + 2, variant.workspace);
  }
  return slots.levels();
}

}  // namespace reprise
