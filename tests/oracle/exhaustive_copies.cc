#include "oracle/exhaustive_copies.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace reprise::testing {
namespace {

// Between two runs the actions stand in this order: drops, copies out, then the rest. Any plan can
// be brought into it without loss: a drop and a copy out do no harm when they come earlier.
enum Step : char { kDrop, kOut, kRest };

struct State {
  std::vector<char> device, host;  // by value: Presence
  std::vector<char> sent;          // by value: it has been copied out
  std::vector<char> ran;           // by op
  char step = kDrop;
  // The fewest bytes of a value that was given up since the last run or copy back, though it is
  // needed later. Giving it up can wait until something does not fit otherwise.
  int64_t given_up = kNone;

  static constexpr int64_t kNone = int64_t{1} << 60;
  auto key() const { return std::tie(device, host, sent, ran, step, given_up); }
  bool operator<(const State& other) const { return key() < other.key(); }
};

// Times at which things are free or there, none before `now`.
struct Times {
  int64_t now = 0;
  int64_t out_free = 0, in_free = 0;
  std::vector<int64_t> to_host, to_device;  // by value; 0 unless it is coming

  bool nowhere_later(const Times& other) const {
    if (now > other.now || out_free > other.out_free || in_free > other.in_free) return false;
    for (size_t v = 0; v < to_host.size(); ++v) {
      if (to_host[v] > other.to_host[v] || to_device[v] > other.to_device[v]) return false;
    }
    return true;
  }
};

class Exhaustive final : public LabelSearch<State, Times> {
 public:
  Exhaustive(const Graph& graph, const Machine& machine, int64_t budget, size_t most, Copies copies)
      : LabelSearch(graph, most),
        machine_(machine),
        budget_(budget),
        anywhere_(copies == Copies::kAnywhere) {
    while (graph.ops[loss_].phase == Phase::kForward) ++loss_;
    out_ = find_channel(machine, 0, 1);
    in_ = find_channel(machine, 1, 0);
    shared_ = queue_of(machine, out_) == queue_of(machine, in_);
  }

  BestPlan run() {
    Label start;
    const size_t values = graph_.values.size();
    start.state = {.device = std::vector<char>(values, kAbsent),
                   .host = std::vector<char>(values, kAbsent),
                   .sent = std::vector<char>(values, 0),
                   .ran = std::vector<char>(graph_.ops.size(), 0)};
    start.times.to_host.assign(values, 0);
    start.times.to_device.assign(values, 0);
    for (size_t v = 0; v < values; ++v) {
      if (is_input(v)) start.state.device[v] = kHere;
    }
    if (level(start.state) > budget_) return {.finished = true};
    add(std::move(start));
    if (const std::optional<size_t> best = search()) return answer(*best);
    return {.finished = !gave_up_};
  }

 private:
  int64_t level(const State& state) const {
    int64_t sum = graph_.fixed.count();
    for (size_t v = 0; v < state.device.size(); ++v) {
      if (state.device[v] != kAbsent) sum += bytes(v);
    }
    return sum;
  }
  bool movable(size_t v) const {
    return anywhere_ || graph_.values[v].kind == ValueKind::kActivation ||
           graph_.values[v].kind == ValueKind::kSaved;
  }
  bool done(const State& state) const override {
    return std::all_of(state.ran.begin(), state.ran.end(), [](char ran) { return ran != 0; }) &&
           std::all_of(graph_.results.begin(), graph_.results.end(),
                       [&](ValueIndex v) { return state.device[static_cast<size_t>(v)] == kHere; });
  }

  void add(Label label) {
    Times& times = label.times;
    times.out_free = std::max(times.out_free, times.now);
    times.in_free = std::max(times.in_free, times.now);
    for (std::vector<int64_t>* list : {&times.to_host, &times.to_device}) {
      for (int64_t& time : *list) time = std::max(time, times.now);
    }
    for (size_t v = 0; v < label.state.device.size(); ++v) {
      if (label.state.host[v] != kComing) times.to_host[v] = 0;
      if (label.state.device[v] != kComing) times.to_device[v] = 0;
    }
    const int64_t least = times.now + rest(label.state.ran);
    enqueue(std::move(label), least);
  }

  const std::string& host() const { return machine_.memories[1].name; }
  const std::string& device() const { return machine_.memories[0].name; }

  void expand(size_t parent) override {
    needed_ = needed(labels_[parent].state.ran);
    for (size_t o = 0; o < graph_.ops.size(); ++o) {
      for (const Variant& variant : graph_.ops[o].variants) run_op(parent, o, variant);
    }
    for (size_t v = 0; v < graph_.values.size(); ++v) {
      const State state = labels_[parent].state;
      if (is_input(v) || (is_result(v) && !anywhere_)) continue;
      if (is_result(v) && state.device[v] == kComing) arrive(parent, v);
      if (state.step == kDrop && state.device[v] == kHere && state.host[v] == kAbsent)
        drop(parent, v);
      if (!movable(v) || !needed_[v]) continue;
      const bool before_loss = anywhere_ || !state.ran[loss_];
      const bool behind_loss = anywhere_ || state.ran[loss_];
      if (before_loss && state.step <= kOut && state.device[v] == kHere && !state.sent[v]) {
        send(parent, v);
      }
      if (state.device[v] == kHere && state.host[v] != kAbsent) evict(parent, v);
      if (behind_loss && state.device[v] == kAbsent && state.host[v] != kAbsent) fetch(parent, v);
    }
  }

  void drop(size_t parent, size_t v) {
    Label label = child(parent);
    label.state.device[v] = kAbsent;
    // A value that only another variant reads is given up in any case, and copies back come later.
    if (!anywhere_) label.state.given_up = std::min(label.state.given_up, bytes(v));
    label.actions.push_back({ActionKind::kFree, id(v), ""});
    add(std::move(label));
  }

  void send(size_t parent, size_t v) {
    Label label = child(parent);
    Times& times = label.times;
    label.state.step = kOut;
    label.state.host[v] = kComing;
    label.state.sent[v] = 1;
    times.to_host[v] =
        std::max(times.now, times.out_free) +
        copy_time(machine_.channels[static_cast<size_t>(out_)], Bytes(bytes(v))).count();
    times.out_free = times.to_host[v];
    if (shared_) times.in_free = times.out_free;
    label.actions.push_back({ActionKind::kCopy, id(v), "", device(), host()});
    add(std::move(label));
  }

  void evict(size_t parent, size_t v) {
    Label label = child(parent);
    label.state.step = kRest;
    label.times.now = std::max(label.times.now, label.times.to_host[v]);
    label.state.host[v] = kHere;
    label.state.device[v] = kAbsent;
    label.state.given_up = std::min(label.state.given_up, bytes(v));
    label.actions.push_back({ActionKind::kWait, id(v), "", host()});
    label.actions.push_back({ActionKind::kFree, id(v), ""});
    add(std::move(label));
  }

  // Waits for a result that nothing reads any more.
  void arrive(size_t parent, size_t v) {
    Label label = child(parent);
    label.state.step = kRest;
    wait(v, label);
    add(std::move(label));
  }

  void wait(size_t v, Label& label) {
    label.times.now = std::max(label.times.now, label.times.to_device[v]);
    label.state.device[v] = kHere;
    label.actions.push_back({ActionKind::kWait, id(v), "", device()});
    if (anywhere_) {
      label.state.host[v] = kHere;  // Its copy out was over before the copy back began.
      return;
    }
    label.state.host[v] = kAbsent;
    label.actions.push_back({ActionKind::kFree, id(v), "", host()});
  }

  void fetch(size_t parent, size_t v) {
    Label label = child(parent);
    Times& times = label.times;
    const int64_t after = level(label.state) + bytes(v);
    if (after > budget_ || after + label.state.given_up <= budget_) return;
    label.state.given_up = State::kNone;
    label.state.step = kRest;
    label.state.device[v] = kComing;
    times.to_device[v] =
        std::max({times.now, times.in_free, times.to_host[v]}) +
        copy_time(machine_.channels[static_cast<size_t>(in_)], Bytes(bytes(v))).count();
    times.in_free = times.to_device[v];
    if (shared_) times.out_free = times.in_free;
    label.actions.push_back({ActionKind::kCopy, id(v), "", host(), device()});
    add(std::move(label));
  }

  void run_op(size_t parent, size_t o, const Variant& variant) {
    const Op& op = graph_.ops[o];
    Label label = child(parent);
    State& state = label.state;
    if (!is_its_turn(state.ran, o)) return;
    const auto wanted = [&](ValueIndex v) {
      return needed_[static_cast<size_t>(v)] && state.device[static_cast<size_t>(v)] == kAbsent;
    };
    if (state.ran[o] && std::none_of(variant.writes.begin(), variant.writes.end(), wanted)) return;
    for (const ValueIndex read : variant.reads) {
      const auto v = static_cast<size_t>(read);
      if (state.device[v] == kAbsent) return;
      if (state.device[v] == kHere) continue;
      wait(v, label);
    }
    int64_t during = level(state) + variant.workspace.count();
    for (const ValueIndex write : variant.writes) during += bytes(static_cast<size_t>(write));
    if (during > budget_ || during + state.given_up <= budget_) return;
    state.given_up = State::kNone;
    for (const ValueIndex write : variant.writes) {
      const auto v = static_cast<size_t>(write);
      if (state.device[v] == kAbsent) state.device[v] = kHere;
    }
    state.ran[o] = 1;
    state.step = kDrop;
    label.times.now += variant.time.count();
    label.actions.push_back({ActionKind::kRun, op.id, variant.name});
    const std::vector<char> still = needed(state.ran);
    for (size_t v = 0; v < still.size(); ++v) {
      const bool here = state.device[v] == kHere &&
                        (state.host[v] == kAbsent || (anywhere_ && state.host[v] == kHere));
      if (!here || still[v] || is_input(v)) continue;
      state.device[v] = kAbsent;
      label.actions.push_back({ActionKind::kFree, id(v), ""});
      if (state.host[v] == kAbsent) continue;
      state.host[v] = kAbsent;
      label.actions.push_back({ActionKind::kFree, id(v), "", host()});
    }
    add(std::move(label));
  }

  BestPlan answer(size_t last) const {
    BestPlan best{true, labels_[last].times.now, actions_to(last)};
    // The values that are left are given back at the end. Copies under way have to be waited for,
    // which a plan of least time does before its last run or not at all: such a plan is not made.
    const State& state = labels_[last].state;
    for (size_t v = 0; v < state.device.size(); ++v) {
      if (is_input(v)) continue;
      if (state.host[v] == kAbsent || (is_result(v) && !anywhere_)) continue;
      if (!anywhere_ || state.host[v] == kComing) best.actions.clear();
      if (best.actions.empty()) return best;
      best.actions.push_back({ActionKind::kFree, id(v), "", host()});
    }
    for (size_t v = 0; v < state.device.size(); ++v) {
      if (is_input(v) || is_result(v)) continue;
      if (state.device[v] == kHere) best.actions.push_back({ActionKind::kFree, id(v), ""});
    }
    return best;
  }

  const Machine& machine_;
  int64_t budget_;
  const bool anywhere_;
  int32_t out_ = 0, in_ = 0;
  bool shared_ = false;
  size_t loss_ = 0;  // the first op behind the forward
};

}  // namespace

BestPlan best_plan_with_copies(const Graph& graph, const Machine& machine, int64_t budget,
                               size_t most_labels, Copies copies) {
  return Exhaustive(graph, machine, budget, most_labels, copies).run();
}

}  // namespace reprise::testing
