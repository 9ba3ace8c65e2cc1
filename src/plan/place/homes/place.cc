#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "plan/place/copies.h"
#include "plan/place/homes/homes.h"
#include "plan/place/room.h"
#include "reprise/check/simulate.h"

namespace reprise::internal::homes {
namespace {

constexpr size_t kAll = std::numeric_limits<size_t>::max();
// The first list says how many values ahead of the next one are copied to the device. The second
// one says how many of the values that ops have written stay there behind it. The bytes may allow
// fewer.
constexpr std::array<size_t, 4> kAhead = {1, 2, 6, kAll};
constexpr std::array<size_t, 3> kBehind = {0, 2, kAll};

// A Stay is a life of a value on the device. Slot k is action k with the actions that are put before
// it; the last slot is the end of the step.
struct Stay {
  ValueIndex value = 0;
  size_t first = 0, last = 0;  // the slots of the first and of the last run that touches it
  bool comes = false;          // it is copied to the device
  bool goes = false;           // it is copied from the device behind `last`
  bool is_taken = false;       // the run in `last` takes its memory
  size_t in = 0, leaves = 0;   // the slots before whose action it comes, and leaves
};

class Places {
 public:
  Places(const Graph& graph, const std::vector<Action>& actions, Bytes budget,
         const Machine& machine)
      : graph_(graph), actions_(actions), machine_(machine) {
    for (const Value& value : graph.values) {
      if (!value.home.empty()) elsewhere_.insert(value.id);
    }
    Graph bare = with_all_on_device(graph);
    bare.fixed = graph.fixed;
    const Timeline timeline = simulate(bare, actions, machine);
    Bytes before = timeline.initial;
    std::vector<int64_t> room;
    for (const TimelineStep& step : timeline.steps) {
      room.push_back((budget - std::max(before, step.during)).count());
      before = step.after;
    }
    room.push_back((budget - before).count());
    for_each_run([&](size_t slot, const Variant& variant) { room[slot] -= touched(variant); });
    room_ = place::Room(std::move(room));
    for_each_run([&](size_t slot, const Variant& variant) { add_stays(slot, variant); });
  }

  std::vector<Action> best() const {
    std::vector<Action> best;
    Nanos time;
    for (const size_t ahead : kAhead) {
      for (const size_t behind : kBehind) {
        std::vector<Action> plan = with_copies(ahead, behind);
        const Nanos its = simulate(graph_, plan, machine_).time;
        if (!best.empty() && its >= time) continue;
        best = std::move(plan);
        time = its;
      }
    }
    return best;
  }

 private:
  int64_t bytes(ValueIndex value) const { return graph_.values[value].bytes.count(); }
  bool has_home(ValueIndex value) const { return !graph_.values[value].home.empty(); }
  bool takes_over(const Variant& variant, ValueIndex value) const {
    return std::any_of(variant.reuses.begin(), variant.reuses.end(), [&](const auto& pair) {
      return pair.first == value && has_home(pair.second);
    });
  }

  template <class Function>
  void for_each_run(const Function& function) const {
    const std::vector<BoundAction> bound = bind(graph_, actions_, machine_);
    for (size_t k = 0; k < bound.size(); ++k) {
      if (bound[k].kind != ActionKind::kRun) continue;
      function(k, graph_.ops[bound[k].target].variants[bound[k].variant]);
    }
  }

  // Returns the bytes of values that live elsewhere, while a run touches them.
  int64_t touched(const Variant& variant) const {
    int64_t sum = 0;
    for (const ValueIndex v : variant.reads) sum += has_home(v) ? bytes(v) : 0;
    for (const ValueIndex v : variant.writes) {
      if (has_home(v) && !takes_over(variant, v)) sum += bytes(v);
    }
    return sum;
  }

  // The values come and go for every run that touches them, or stay between two of these runs if that
  // takes no bytes of the rest of the plan.
  void add_stays(size_t slot, const Variant& variant) {
    for (const ValueIndex v : variant.reads) {
      if (has_home(v)) read(v, slot);
    }
    const auto take = [&](ValueIndex v) {
      if (has_home(v)) stays_[now_[v]].is_taken = true;
      now_.erase(v);
    };
    for (const ValueIndex v : variant.consumes) take(v);
    for (const auto& pair : variant.reuses) take(pair.second);
    for (const ValueIndex v : variant.writes) {
      if (!has_home(v)) continue;
      now_[v] = stays_.size();
      const bool is_first = sent_.insert(v).second;
      stays_.push_back({.value = v, .first = slot, .last = slot, .goes = is_first});
    }
  }

  void read(ValueIndex value, size_t slot) {
    if (const auto found = now_.find(value); found != now_.end()) {
      Stay& stay = stays_[found->second];
      if (room_.take(stay.last + 1, slot, bytes(value))) {
        stay.last = slot;
        return;
      }
    }
    now_[value] = stays_.size();
    stays_.push_back({.value = value, .first = slot, .last = slot, .comes = true});
  }

  std::vector<Action> with_copies(size_t ahead, size_t behind) const {
    std::vector<Stay> stays = stays_;
    place::Room room = room_;
    std::vector<size_t> free_from(graph_.values.size(), 0);  // by value: where it is gone again
    size_t earliest = 0;                                     // copies keep the order of the runs
    for (size_t s = 0; s < stays.size(); ++s) {
      Stay& stay = stays[s];
      const int64_t size = bytes(stay.value);
      stay.in = stay.first;
      if (stay.comes) {
        size_t limit = ahead >= s ? 0 : stays[s - ahead].first;
        limit = std::max({limit, earliest, free_from[stay.value]});
        earliest = stay.in = room.take_before(stay.first, limit, size);
      }
      stay.leaves = stay.last + 1;
      if (stay.goes) {
        const size_t limit =
            behind >= stays.size() - s - 1 ? actions_.size() : stays[s + behind].last;
        stay.leaves = room.take_behind(stay.leaves, limit + 1, size);
      }
      free_from[stay.value] = stay.leaves;
    }
    return write(stays);
  }

  std::vector<Action> write(const std::vector<Stay>& stays) const {
    const size_t slots = actions_.size() + 1;
    place::CopyLayout copies(machine_, slots);
    for (const Stay& stay : stays) {
      const Value& value = value_of(stay);
      if (stay.goes) copies.send(stay.last + 1, value.id, value.home);
      if (!stay.is_taken) {
        copies.leave(std::min(stay.leaves, slots - 1), value.id, stay.goes ? value.home : "");
      }
      if (!stay.comes) continue;
      copies.bring(stay.in, value.id, value.home);
      copies.need(stay.first, value.id, "");
    }
    std::vector<Action> plan;
    std::vector<int64_t> position(actions_.size());
    for (size_t k = 0; k < slots; ++k) {
      copies.write(k, plan);
      if (k == actions_.size()) break;
      if (frees_homed(actions_[k])) continue;
      position[k] = static_cast<int64_t>(plan.size());
      plan.push_back(actions_[k]);
      for (int64_t& earlier : plan.back().after) earlier = position[earlier];
    }
    return plan;
  }

  // For the planner these values had no bytes, and were on the device.
  bool frees_homed(const Action& action) const {
    return action.kind == ActionKind::kFree && elsewhere_.count(action.id) > 0;
  }

  const Value& value_of(const Stay& stay) const { return graph_.values[stay.value]; }

  const Graph& graph_;
  const std::vector<Action>& actions_;
  const Machine& machine_;
  place::Room room_;                  // by slot
  std::vector<Stay> stays_;           // in the order of their first runs
  std::map<ValueIndex, size_t> now_;  // the last stay of a value
  std::set<std::string> elsewhere_;   // ids of the values that live elsewhere
  std::set<ValueIndex> sent_;         // values that ops have written
};

}  // namespace

std::vector<Action> place(const Graph& graph, const std::vector<Action>& actions, Bytes budget,
                          const Machine& machine) {
  return Places(graph, actions, budget, machine).best();
}

}  // namespace reprise::internal::homes
