#include "oracle/exhaustive_places.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <queue>
#include <string>
#include <utility>

namespace reprise::testing {
namespace {

constexpr int kMemories = 2;
constexpr int64_t kUnlimited = int64_t{1} << 60;

template <class T>
using Both = std::array<T, kMemories>;

// Says where a value is, in one memory.
enum Presence : char { kAbsent, kHere, kComing };

struct State {
  Both<std::vector<char>> status;  // by memory and value: Presence
  std::vector<char> ran;           // by op
  // The fewest bytes of a value that was given back since the memory last took bytes. Giving it
  // back can wait until something does not fit otherwise.
  Both<int64_t> given_back{kUnlimited, kUnlimited};
  bool finished = false;

  auto operator<=>(const State&) const = default;
};

struct Times {
  Both<int64_t> clock{};                  // of a device; the other memory has none
  Both<int64_t> free{};                   // of the channel that leaves the memory
  Both<std::vector<int64_t>> came, left;  // by memory and value: when copies are over

  bool nowhere_later(const Times& other) const {
    for (int m = 0; m < kMemories; ++m) {
      if (clock[m] > other.clock[m] || free[m] > other.free[m]) return false;
      for (size_t v = 0; v < came[m].size(); ++v) {
        if (came[m][v] > other.came[m][v] || left[m][v] > other.left[m][v]) return false;
      }
    }
    return true;
  }
};

struct Label {
  State state;
  Times times;
  int64_t parent = -1;
  std::vector<Action> actions = {};  // since the parent
  bool dead = false;
};

bool once(const Op& op) { return op.once || op.phase != Phase::kForward; }

class Exhaustive {
 public:
  Exhaustive(const Graph& graph, const Machine& machine, int64_t budget, size_t most, Copies copies)
      : graph_(graph),
        machine_(machine),
        most_(most),
        around_loss_(copies == Copies::kAroundTheLoss),
        two_devices_(machine.memories[1].computes) {
    const auto& capacity = machine.memories[1].capacity;
    capacity_ = {budget, capacity ? capacity->count() : kUnlimited};
    for (int m = 0; m < kMemories; ++m) channel_[m] = find_channel(machine, m, 1 - m);
    shared_ = queue_of(machine, channel_[0]) == queue_of(machine, channel_[1]);
    while (graph.ops[loss_].phase == Phase::kForward) ++loss_;
  }

  BestPlan run() {
    Label start;
    const size_t values = graph_.values.size();
    for (int m = 0; m < kMemories; ++m) {
      start.state.status[m].assign(values, kAbsent);
      start.times.came[m].assign(values, 0);
      start.times.left[m].assign(values, 0);
    }
    start.state.ran.assign(graph_.ops.size(), 0);
    for (size_t v = 0; v < values; ++v) {
      if (is_input(v)) start.state.status[home(v)][v] = kHere;
    }
    if (level(start.state, 0) > capacity_[0]) return {.finished = true};
    add(std::move(start));
    while (!open_.empty()) {
      const auto index = static_cast<size_t>(open_.top().second);
      open_.pop();
      if (labels_[index].dead) continue;
      if (labels_[index].state.finished) return answer(index);
      if (labels_.size() > most_) return {};
      expand(index);
    }
    return {.finished = true};
  }

 private:
  int64_t bytes(size_t v) const { return graph_.values[v].bytes.count(); }
  const std::string& id(size_t v) const { return graph_.values[v].id; }
  const std::string& name(int m) const { return machine_.memories[static_cast<size_t>(m)].name; }
  bool is_input(size_t v) const { return graph_.values[v].kind == ValueKind::kInput; }
  bool is_result(size_t v) const {
    return std::count(graph_.results.begin(), graph_.results.end(), static_cast<ValueIndex>(v)) > 0;
  }
  int home(size_t v) const {
    return static_cast<int>(find_memory(machine_, graph_.values[v].home));
  }
  // An input is always at home.
  bool at_home(size_t v, int m) const { return is_input(v) && home(v) == m; }
  // The device that a wait in a memory holds up.
  int waiting(int m) const { return two_devices_ ? m : 0; }

  int64_t level(const State& state, int m) const {
    int64_t sum = m == 0 ? graph_.fixed.count() : 0;
    for (size_t v = 0; v < graph_.values.size(); ++v) {
      if (state.status[m][v] != kAbsent) sum += bytes(v);
    }
    return sum;
  }

  // A value is needed if it is a result, or an op that has still to run may read it, or one that
  // makes a needed value.
  std::vector<char> needed(const std::vector<char>& ran) const {
    std::vector<char> values(graph_.values.size(), 0);
    for (size_t v = 0; v < values.size(); ++v) values[v] = is_result(v);
    for (size_t o = graph_.ops.size(); o-- > 0;) {
      const Op& op = graph_.ops[o];
      for (const Variant& variant : op.variants) {
        const bool makes = !once(op) && std::any_of(variant.writes.begin(), variant.writes.end(),
                                                    [&](ValueIndex v) { return values[v] != 0; });
        if (ran[o] && !makes) continue;
        for (const ValueIndex v : variant.reads) values[static_cast<size_t>(v)] = 1;
      }
    }
    return values;
  }

  // Every op that has not run runs at least once.
  int64_t rest(const std::vector<char>& ran) const {
    int64_t time = 0;
    for (size_t o = 0; o < graph_.ops.size(); ++o) {
      if (ran[o]) continue;
      Nanos least = graph_.ops[o].variants.front().time;
      for (const Variant& variant : graph_.ops[o].variants) least = std::min(least, variant.time);
      time += least.count();
    }
    return time;
  }

  // Ops that run once keep their order.
  bool is_its_turn(const std::vector<char>& ran, size_t o) const {
    if (!once(graph_.ops[o])) return true;
    if (ran[o]) return false;
    for (size_t before = 0; before < o; ++before) {
      if (once(graph_.ops[before]) && !ran[before]) return false;
    }
    return true;
  }

  Label child(size_t parent) const {
    return {labels_[parent].state, labels_[parent].times, static_cast<int64_t>(parent)};
  }

  void add(Label label) {
    Times& times = label.times;
    const int64_t late = std::max(times.clock[0], times.clock[1]);
    for (int m = 0; m < kMemories; ++m) {
      times.free[m] = std::max(times.free[m], late);
      const int64_t clock = times.clock[waiting(m)];
      for (size_t v = 0; v < graph_.values.size(); ++v) {
        const bool gone = label.state.status[m][v] == kAbsent;
        times.came[m][v] = gone ? 0 : std::max(times.came[m][v], clock);
        times.left[m][v] = gone ? 0 : std::max(times.left[m][v], clock);
      }
    }
    // The devices have to do at least the rest together.
    const int64_t devices = two_devices_ ? 2 : 1;
    const int64_t together = times.clock[0] + times.clock[1] + rest(label.state.ran);
    const int64_t least = std::max(late, (together + devices - 1) / devices);
    std::vector<size_t>& same = by_state_[label.state];
    for (const size_t other : same) {
      if (labels_[other].times.nowhere_later(times)) return;
    }
    std::erase_if(same, [&](size_t other) {
      if (!times.nowhere_later(labels_[other].times)) return false;
      labels_[other].dead = true;
      return true;
    });
    same.push_back(labels_.size());
    open_.emplace(least, static_cast<int64_t>(labels_.size()));
    labels_.push_back(std::move(label));
  }

  void expand(size_t parent) {
    needed_ = needed(labels_[parent].state.ran);
    finish(parent);
    for (size_t o = 0; o < graph_.ops.size(); ++o) {
      for (const Variant& variant : graph_.ops[o].variants) run_op(parent, o, variant);
    }
    for (size_t v = 0; v < graph_.values.size(); ++v) {
      for (int m = 0; m < kMemories; ++m) {
        const State state = labels_[parent].state;
        if (state.status[m][v] == kAbsent) continue;
        if (state.status[1 - m][v] == kAbsent && may_copy(state, v, m)) copy(parent, v, m);
        if (state.status[m][v] == kHere && may_drop(v, m)) drop(parent, v, m);
      }
    }
  }

  bool may_copy(const State& state, size_t v, int from) const {
    if (!needed_[v] || (at_home(v, 0) && !two_devices_)) return false;
    if (!around_loss_) return true;
    const ValueKind kind = graph_.values[v].kind;
    const bool moves = kind == ValueKind::kActivation || kind == ValueKind::kSaved;
    return moves && !is_result(v) && (state.ran[loss_] != 0) == (from == 1);
  }

  // A memory without end keeps what is needed.
  bool may_drop(size_t v, int m) const {
    if (at_home(v, m)) return false;
    if (m == 0) return !(around_loss_ && is_result(v));
    return two_devices_ || capacity_[1] != kUnlimited || !needed_[v];
  }

  void wait(Label& label, size_t v, int m) const {
    if (label.state.status[m][v] != kComing) return;
    label.state.status[m][v] = kHere;
    int64_t& clock = label.times.clock[waiting(m)];
    clock = std::max(clock, label.times.came[m][v]);
    label.actions.push_back({ActionKind::kWait, id(v), "", name(m)});
    if (around_loss_ && m == 0) give_back(label, v, 1);
  }

  // A copy out of here is one that is coming to the other memory, or has come.
  void give_back(Label& label, size_t v, int m) const {
    wait(label, v, m);
    wait(label, v, 1 - m);
    int64_t& clock = label.times.clock[waiting(m)];
    clock = std::max({clock, label.times.came[m][v], label.times.left[m][v]});
    label.state.status[m][v] = kAbsent;
    label.actions.push_back({ActionKind::kFree, id(v), "", m == 0 ? "" : name(m)});
  }

  void drop(size_t parent, size_t v, int m) {
    Label label = child(parent);
    give_back(label, v, m);
    label.state.given_back[m] = std::min(label.state.given_back[m], bytes(v));
    add(std::move(label));
  }

  // Says whether a memory has room, and needs what was given back for it.
  bool takes(State& state, int m, int64_t level) const {
    if (level > capacity_[m] || level + state.given_back[m] <= capacity_[m]) return false;
    state.given_back[m] = kUnlimited;
    return true;
  }

  void copy(size_t parent, size_t v, int from) {
    Label label = child(parent);
    const int to = 1 - from;
    if (!takes(label.state, to, level(label.state, to) + bytes(v))) return;
    Times& times = label.times;
    const int64_t start =
        std::max({times.clock[0], times.clock[1], times.free[from], times.came[from][v]});
    const Channel& channel = machine_.channels[static_cast<size_t>(channel_[from])];
    const int64_t end = start + copy_time(channel, Bytes(bytes(v))).count();
    times.free[from] = end;
    if (shared_) times.free[to] = end;
    times.left[from][v] = std::max(times.left[from][v], end);
    times.came[to][v] = end;
    times.left[to][v] = 0;
    label.state.status[to][v] = kComing;
    label.actions.push_back({ActionKind::kCopy, id(v), "", name(from), name(to)});
    add(std::move(label));
  }

  void run_op(size_t parent, size_t o, const Variant& variant) {
    const Op& op = graph_.ops[o];
    const auto m = static_cast<int>(find_memory(machine_, variant.at));
    Label label = child(parent);
    State& state = label.state;
    if (!is_its_turn(state.ran, o)) return;
    const auto wanted = [&](ValueIndex v) {
      return needed_[static_cast<size_t>(v)] && state.status[m][static_cast<size_t>(v)] == kAbsent;
    };
    if (state.ran[o] && std::none_of(variant.writes.begin(), variant.writes.end(), wanted)) return;
    for (const ValueIndex read : variant.reads) {
      if (state.status[m][static_cast<size_t>(read)] == kAbsent) return;
    }
    for (const ValueIndex read : variant.reads) wait(label, static_cast<size_t>(read), m);
    int64_t during = level(state, m) + variant.workspace.count();
    for (const auto& pair : variant.reuses) {  // of what lives elsewhere
      during -= bytes(static_cast<size_t>(pair.second));
      state.status[m][static_cast<size_t>(pair.second)] = kAbsent;
    }
    for (const ValueIndex write : variant.writes) during += bytes(static_cast<size_t>(write));
    if (!takes(state, m, during)) return;
    for (const ValueIndex write : variant.writes) {
      char& status = state.status[m][static_cast<size_t>(write)];
      if (status == kAbsent) status = kHere;
    }
    state.ran[o] = 1;
    label.times.clock[m] += variant.time.count();
    label.actions.push_back({ActionKind::kRun, op.id, variant.name});
    forget(label);
    add(std::move(label));
  }

  // A value that nobody needs any more goes at once, if that holds nobody up.
  void forget(Label& label) const {
    const std::vector<char> still = needed(label.state.ran);
    for (size_t v = 0; v < still.size(); ++v) {
      const Both<char> there{label.state.status[0][v], label.state.status[1][v]};
      if (still[v] || at_home(v, 0) || there[0] == kComing || there[1] == kComing) continue;
      for (int m = 0; m < kMemories; ++m) {
        if (there[m] == kAbsent || at_home(v, m)) continue;
        if (label.times.left[m][v] > label.times.clock[waiting(m)]) continue;
        give_back(label, v, m);
      }
    }
  }

  // Ends the plan: results are waited for, and all else is given back.
  void finish(size_t parent) {
    Label label = child(parent);
    State& state = label.state;
    if (std::count(state.ran.begin(), state.ran.end(), 0) > 0) return;
    for (size_t v = 0; v < graph_.values.size(); ++v) {
      if (is_result(v) && state.status[home(v)][v] == kAbsent) return;
    }
    for (size_t v = 0; v < graph_.values.size(); ++v) {
      wait(label, v, 0);
      wait(label, v, 1);
      for (int m = 0; m < kMemories; ++m) {
        if (home(v) == m && (is_result(v) || is_input(v))) continue;
        if (state.status[m][v] != kAbsent) give_back(label, v, m);
      }
    }
    state.finished = true;
    add(std::move(label));
  }

  BestPlan answer(size_t last) const {
    const Both<int64_t>& clock = labels_[last].times.clock;
    BestPlan best{true, std::max(clock[0], clock[1])};
    for (auto at = static_cast<int64_t>(last); at >= 0;
         at = labels_[static_cast<size_t>(at)].parent) {
      const std::vector<Action>& part = labels_[static_cast<size_t>(at)].actions;
      best.actions.insert(best.actions.begin(), part.begin(), part.end());
    }
    return best;
  }

  const Graph& graph_;
  const Machine& machine_;
  const size_t most_;
  const bool around_loss_, two_devices_;
  Both<int64_t> capacity_{};
  Both<int32_t> channel_{};
  bool shared_ = false;
  size_t loss_ = 0;  // the first op behind the forward
  std::vector<Label> labels_;
  std::vector<char> needed_;  // in the label that is being expanded
  std::map<State, std::vector<size_t>> by_state_;
  using Entry = std::pair<int64_t, int64_t>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> open_;
};

}  // namespace

BestPlan best_with_copies(const Graph& graph, const Machine& machine, int64_t budget,
                          size_t most_labels, Copies copies) {
  return Exhaustive(graph, machine, budget, most_labels, copies).run();
}

BestPlan best_placed(const Graph& graph, const Machine& machine, int64_t budget,
                     size_t most_labels) {
  std::vector<std::vector<size_t>> groups;  // of values that stay or move together
  for (size_t v = 0; v < graph.values.size(); ++v) {
    if (graph.values[v].home.empty()) continue;
    const auto follows = [&](const std::vector<size_t>& group) {
      return std::any_of(graph.ops.begin(), graph.ops.end(), [&](const Op& op) {
        const auto& reuses = op.variants.front().reuses;
        return std::count(reuses.begin(), reuses.end(),
                          std::pair(static_cast<ValueIndex>(v),
                                    static_cast<ValueIndex>(group.front()))) > 0;
      });
    };
    const auto found = std::find_if(groups.begin(), groups.end(), follows);
    found == groups.end() ? groups.push_back({v}) : found->push_back(v);
  }
  BestPlan best{.finished = true};
  for (size_t choice = 0; choice < size_t{1} << groups.size(); ++choice) {
    std::vector<char> stays(graph.values.size(), 0);
    for (size_t g = 0; g < groups.size(); ++g) {
      for (const size_t v : groups[g]) stays[v] = (choice >> g) % 2 == 1;
    }
    const Graph placed = with_on_device(graph, stays);
    BestPlan plan = best_with_copies(placed, machine, budget, most_labels);
    if (!plan.finished) return {};
    if (plan.time && (!best.time || *plan.time < *best.time)) best = std::move(plan);
  }
  return best;
}

}  // namespace reprise::testing
