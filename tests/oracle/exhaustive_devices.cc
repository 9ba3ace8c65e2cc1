#include "oracle/exhaustive_devices.h"

#include <algorithm>
#include <array>
#include <utility>

namespace reprise::testing {
namespace {

constexpr int kDevices = 2;

template <class T>
using Both = std::array<T, kDevices>;

struct State {
  Both<std::vector<char>> status;  // by device and value
  std::vector<char> ran;           // by op
  bool finished = false;

  auto operator<=>(const State&) const = default;
};

struct Times {
  Both<int64_t> clock{};
  Both<int64_t> free{};                   // of the channel that leaves the device
  Both<std::vector<int64_t>> came, left;  // by device and value: when copies are over

  bool nowhere_later(const Times& other) const {
    for (int d = 0; d < kDevices; ++d) {
      if (clock[d] > other.clock[d] || free[d] > other.free[d]) return false;
      for (size_t v = 0; v < came[d].size(); ++v) {
        if (came[d][v] > other.came[d][v] || left[d][v] > other.left[d][v]) return false;
      }
    }
    return true;
  }
};

class Exhaustive final : public LabelSearch<State, Times> {
 public:
  Exhaustive(const Graph& graph, const Machine& machine, int64_t budget, size_t most)
      : LabelSearch(graph, most), machine_(machine) {
    const auto& capacity = machine.memories[1].capacity;
    capacity_ = {budget, capacity ? capacity->count() : int64_t{1} << 60};
    for (int d = 0; d < kDevices; ++d) channel_[d] = find_channel(machine, d, 1 - d);
    shared_ = queue_of(machine, channel_[0]) == queue_of(machine, channel_[1]);
  }

  BestPlan run() {
    Label start;
    const size_t values = graph_.values.size();
    for (int d = 0; d < kDevices; ++d) {
      start.state.status[d].assign(values, kAbsent);
      start.times.came[d].assign(values, 0);
      start.times.left[d].assign(values, 0);
    }
    start.state.ran.assign(graph_.ops.size(), 0);
    for (size_t v = 0; v < values; ++v) {
      if (is_input(v)) start.state.status[0][v] = kHere;
    }
    if (level(start.state, 0) > capacity_[0]) return {.finished = true};
    add(std::move(start));
    if (const std::optional<size_t> best = search()) return answer(*best);
    return {.finished = !gave_up_};
  }

 private:
  std::string name(int d) const { return machine_.memories[static_cast<size_t>(d)].name; }

  int64_t level(const State& state, int d) const {
    int64_t sum = d == 0 ? graph_.fixed.count() : 0;
    for (size_t v = 0; v < graph_.values.size(); ++v) {
      if (state.status[d][v] != kAbsent) sum += bytes(v);
    }
    return sum;
  }

  bool done(const State& state) const override { return state.finished; }

  void add(Label label) {
    Times& times = label.times;
    const int64_t late = std::max(times.clock[0], times.clock[1]);
    for (int d = 0; d < kDevices; ++d) {
      times.free[d] = std::max(times.free[d], late);
      for (size_t v = 0; v < graph_.values.size(); ++v) {
        const bool gone = label.state.status[d][v] == kAbsent;
        times.came[d][v] = gone ? 0 : std::max(times.came[d][v], times.clock[d]);
        times.left[d][v] = gone ? 0 : std::max(times.left[d][v], times.clock[d]);
      }
    }
    // The two devices have to do at least the rest together.
    const int64_t together = times.clock[0] + times.clock[1] + rest(label.state.ran);
    enqueue(std::move(label), std::max(late, (together + 1) / 2));
  }

  void expand(size_t parent) override {
    needed_ = needed(labels_[parent].state.ran);
    finish(parent);
    for (size_t o = 0; o < graph_.ops.size(); ++o) {
      for (const Variant& variant : graph_.ops[o].variants) run_op(parent, o, variant);
    }
    for (size_t v = 0; v < graph_.values.size(); ++v) {
      for (int d = 0; d < kDevices; ++d) {
        const State& state = labels_[parent].state;
        if (state.status[d][v] == kAbsent) continue;
        if (state.status[1 - d][v] == kAbsent && needed_[v]) copy(parent, v, d);
        if (d != 0 || !is_input(v)) drop(parent, v, d);
      }
    }
  }

  void wait(Label& label, size_t v, int d) const {
    if (label.state.status[d][v] != kComing) return;
    label.state.status[d][v] = kHere;
    label.times.clock[d] = std::max(label.times.clock[d], label.times.came[d][v]);
    label.actions.push_back({ActionKind::kWait, id(v), "", name(d)});
  }

  // A copy out of here is one that is coming to the other device, or has come.
  void give_back(Label& label, size_t v, int d) const {
    wait(label, v, d);
    wait(label, v, 1 - d);
    label.times.clock[d] =
        std::max({label.times.clock[d], label.times.came[d][v], label.times.left[d][v]});
    label.state.status[d][v] = kAbsent;
    label.actions.push_back({ActionKind::kFree, id(v), "", d == 0 ? "" : name(d)});
  }

  void drop(size_t parent, size_t v, int d) {
    Label label = child(parent);
    give_back(label, v, d);
    add(std::move(label));
  }

  void copy(size_t parent, size_t v, int d) {
    Label label = child(parent);
    const int to = 1 - d;
    if (level(label.state, to) + bytes(v) > capacity_[to]) return;
    Times& times = label.times;
    const int64_t start =
        std::max({times.clock[0], times.clock[1], times.free[d], times.came[d][v]});
    const Channel& channel = machine_.channels[static_cast<size_t>(channel_[d])];
    const int64_t end = start + copy_time(channel, Bytes(bytes(v))).count();
    times.free[d] = end;
    if (shared_) times.free[to] = end;
    times.left[d][v] = std::max(times.left[d][v], end);
    times.came[to][v] = end;
    times.left[to][v] = 0;
    label.state.status[to][v] = kComing;
    label.actions.push_back({ActionKind::kCopy, id(v), "", name(d), name(to)});
    add(std::move(label));
  }

  void run_op(size_t parent, size_t o, const Variant& variant) {
    const Op& op = graph_.ops[o];
    const auto d = static_cast<int>(find_memory(machine_, variant.at));
    Label label = child(parent);
    State& state = label.state;
    if (!is_its_turn(state.ran, o)) return;
    const auto wanted = [&](ValueIndex v) {
      return needed_[static_cast<size_t>(v)] && state.status[d][static_cast<size_t>(v)] == kAbsent;
    };
    if (state.ran[o] && std::none_of(variant.writes.begin(), variant.writes.end(), wanted)) return;
    for (const ValueIndex read : variant.reads) {
      if (state.status[d][static_cast<size_t>(read)] == kAbsent) return;
    }
    for (const ValueIndex read : variant.reads) wait(label, static_cast<size_t>(read), d);
    int64_t during = level(state, d) + variant.workspace.count();
    for (const ValueIndex write : variant.writes) during += bytes(static_cast<size_t>(write));
    if (during > capacity_[d]) return;
    for (const ValueIndex write : variant.writes) {
      char& status = state.status[d][static_cast<size_t>(write)];
      if (status == kAbsent) status = kHere;
    }
    state.ran[o] = 1;
    label.times.clock[d] += variant.time.count();
    label.actions.push_back({ActionKind::kRun, op.id, variant.name});
    // What nobody needs any more goes at once, if that holds nobody up.
    const std::vector<char> still = needed(state.ran);
    for (size_t v = 0; v < still.size(); ++v) {
      if (still[v] || is_input(v) || state.status[d][v] != kHere) continue;
      if (state.status[1 - d][v] != kAbsent) continue;
      if (label.times.left[d][v] <= label.times.clock[d]) give_back(label, v, d);
    }
    add(std::move(label));
  }

  // Ends the plan: results are waited for, and all else is given back.
  void finish(size_t parent) {
    Label label = child(parent);
    State& state = label.state;
    if (std::count(state.ran.begin(), state.ran.end(), 0) > 0) return;
    for (size_t v = 0; v < graph_.values.size(); ++v) {
      if (is_result(v) && state.status[0][v] == kAbsent) return;
    }
    for (size_t v = 0; v < graph_.values.size(); ++v) {
      wait(label, v, 0);
      wait(label, v, 1);
      for (int d = 0; d < kDevices; ++d) {
        if (d == 0 && (is_result(v) || is_input(v))) continue;
        if (state.status[d][v] != kAbsent) give_back(label, v, d);
      }
    }
    state.finished = true;
    add(std::move(label));
  }

  BestPlan answer(size_t last) const {
    const Both<int64_t>& clock = labels_[last].times.clock;
    return {true, std::max(clock[0], clock[1]), actions_to(last)};
  }

  const Machine& machine_;
  Both<int64_t> capacity_{};
  Both<int32_t> channel_{};
  bool shared_ = false;
};

}  // namespace

BestPlan best_on_devices(const Graph& graph, const Machine& machine, int64_t budget,
                         size_t most_labels) {
  return Exhaustive(graph, machine, budget, most_labels).run();
}

}  // namespace reprise::testing
