#include "check/accounting.h"

#include <numeric>
#include <utility>

#include "model/place_map.h"

namespace reprise {
namespace {

// A value is taken when a run consumes it or reuses its memory.
enum class EventKind : char { kWritten, kFreed, kTaken };

int32_t place_of(const std::optional<BoundAction>& action) {
  if (!action) return 0;
  const bool arrives = action->kind == ActionKind::kCopy || action->kind == ActionKind::kReceive;
  return arrives ? action->to : action->at;
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

  // The slots are empty then.
  Levels take_levels() {
    std::partial_sum(differences_.begin(), differences_.end(), differences_.begin());
    differences_.pop_back();
    return std::move(differences_);
  }

 private:
  std::vector<Wide> differences_;
};

// A Life is a value in a memory.
struct Life {
  bool live = false;
  size_t birth = 0;
};

class Lives {
 public:
  Lives(const Graph& graph, const Machine& machine, std::vector<Slots>& slots)
      : graph_(graph), machine_(machine), slots_(slots), lives_(graph.values.size()) {}

  // `during` is the slot in which it happens. An input at home is always there.
  void happen(ValueIndex value, int32_t memory, EventKind kind, size_t during) {
    if (at_home(value, memory)) return;
    const Bytes bytes = graph_.values[value].bytes;
    Life& life = lives_.at(value, memory);
    if (kind == EventKind::kWritten) {
      if (life.live) {  // The op holds a second copy while it runs.
        slots_[memory].add(during, during + 1, bytes);
      } else {
        life = {true, during};
      }
    } else if (life.live) {
      life.live = false;
      slots_[memory].add(life.birth, kind == EventKind::kFreed ? during + 1 : during, bytes);
    }
  }

  void run(const Variant& variant, int32_t memory, size_t during) {
    for (const ValueIndex v : variant.consumes) happen(v, memory, EventKind::kTaken, during);
    for (const auto& [written, v] : variant.reuses) happen(v, memory, EventKind::kTaken, during);
    for (const ValueIndex v : variant.writes) happen(v, memory, EventKind::kWritten, during);
    slots_[memory].add(during, during + 1, variant.workspace);
  }

  // Adds what is live to the end.
  void end() {
    for (size_t v = 0; v < graph_.values.size(); ++v) {
      const Value& value = graph_.values[v];
      if (value.kind != ValueKind::kInput) continue;
      Slots& slots = slots_[find_memory(machine_, value.home)];
      slots.add(0, slots.end(), value.bytes);
    }
    lives_.for_each([&](ValueIndex value, int32_t memory, const Life& life) {
      if (!life.live) return;
      slots_[memory].add(life.birth, slots_[memory].end(), graph_.values[value].bytes);
    });
  }

 private:
  bool at_home(ValueIndex value, int32_t memory) const {
    return graph_.values[value].kind == ValueKind::kInput &&
           find_memory(machine_, graph_.values[value].home) == memory;
  }

  const Graph& graph_;
  const Machine& machine_;
  std::vector<Slots>& slots_;
  internal::model::PlaceMap<Life> lives_;
};

}  // namespace

std::vector<Levels> interval_levels(const Graph& graph,
                                    const std::vector<std::optional<BoundAction>>& actions,
                                    const Machine& machine) {
  std::vector<size_t> counts(machine.memories.size(), 0);
  for (const auto& action : actions) ++counts[place_of(action)];
  std::vector<Slots> slots;
  for (const size_t count : counts) slots.emplace_back(count);
  slots[0].add(0, slots[0].end(), graph.fixed);
  Lives lives(graph, machine, slots);
  std::vector<size_t> during(counts.size(), 1);
  for (const auto& action : actions) {
    const int32_t memory = place_of(action);
    const size_t slot = std::exchange(during[memory], during[memory] + 2);
    if (!action) continue;
    switch (action->kind) {
      case ActionKind::kRun:
        lives.run(graph.ops[action->target].variants[action->variant], memory, slot);
        break;
      case ActionKind::kFree:
        lives.happen(action->target, memory, EventKind::kFreed, slot);
        break;
      case ActionKind::kCopy:
      case ActionKind::kReceive:
        lives.happen(action->target, memory, EventKind::kWritten, slot);
        break;
      case ActionKind::kWait:
      case ActionKind::kSend:
        break;
    }
  }
  lives.end();
  std::vector<Levels> levels;
  for (Slots& of_memory : slots) levels.push_back(of_memory.take_levels());
  return levels;
}

}  // namespace reprise
