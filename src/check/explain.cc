#include "reprise/check/explain.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "reprise/model/errors.h"

namespace reprise {
namespace {

// Peak holds the bytes of every value while the action at the peak runs, or at the start.
class Peak {
 public:
  Peak(const Graph& graph, const std::vector<BoundAction>& actions, int64_t peak)
      : graph_(graph), held_(graph.values.size()) {
    for (size_t v = 0; v < graph.values.size(); ++v) {
      if (starts_on_device(graph.values[v])) hold(static_cast<ValueIndex>(v));
    }
    for (int64_t a = 0; a < peak; ++a) pass(actions[a]);
    if (peak >= 0) enter(actions[peak]);
  }

  std::vector<Holder> holders() const {
    std::vector<Holder> result;
    const auto add = [&](const std::string& id, Bytes bytes) {
      if (bytes > Bytes(0)) result.push_back({id, bytes});
    };
    add("fixed", graph_.fixed);
    for (size_t v = 0; v < graph_.values.size(); ++v) add(graph_.values[v].id, held_[v]);
    add(workspace_.id, workspace_.bytes);
    std::stable_sort(result.begin(), result.end(),
                     [](const Holder& a, const Holder& b) { return a.bytes > b.bytes; });
    return result;
  }

 private:
  const Variant& variant(const BoundAction& action) const {
    return graph_.ops[action.target].variants[action.variant];
  }
  void hold(ValueIndex value) { held_[value] = graph_.values[value].bytes; }
  void drop(ValueIndex value) { held_[value] = Bytes(0); }

  // Goes from before the action to after it.
  void pass(const BoundAction& action) {
    switch (action.kind) {
      case ActionKind::kRun:
        if (action.at != 0) return;
        take(variant(action));
        for (const ValueIndex value : variant(action).writes) hold(value);
        return;
      case ActionKind::kFree:
        if (action.at == 0) drop(action.target);
        return;
      case ActionKind::kCopy:
      case ActionKind::kReceive:
        if (action.to == 0) hold(action.target);
        return;
      case ActionKind::kWait:
      case ActionKind::kSend:
        return;
    }
  }

  // Goes from before the action into it.
  void enter(const BoundAction& action) {
    switch (action.kind) {
      case ActionKind::kRun:
        if (action.at != 0) return;
        take(variant(action));
        // This adds up, because a value that is already live is held twice while the op runs.
        for (const ValueIndex value : variant(action).writes) {
          held_[value] += graph_.values[value].bytes;
        }
        workspace_ = {"workspace of " + graph_.ops[action.target].id, variant(action).workspace};
        return;
      case ActionKind::kFree:  // The value is held until the free is over.
      case ActionKind::kWait:
      case ActionKind::kSend:
        return;
      case ActionKind::kCopy:
      case ActionKind::kReceive:
        if (action.to == 0) hold(action.target);
        return;
    }
  }

  void take(const Variant& taker) {
    for (const ValueIndex value : taker.consumes) drop(value);
    for (const auto& pair : taker.reuses) drop(pair.second);
  }

  const Graph& graph_;
  std::vector<Bytes> held_;
  Holder workspace_;
};

// ReRuns adds up, by op, what runs more than once and why.
class ReRuns {
 public:
  ReRuns(const Graph& graph, const std::vector<BoundAction>& actions, int64_t peak)
      : graph_(graph), peak_(peak), dropped_(graph.values.size(), kHeld) {
    made_by_.assign(graph.values.size(), -1);
    for (position_ = 0; position_ < std::ssize(actions); ++position_) {
      const BoundAction& action = actions[position_];
      if (action.kind == ActionKind::kRun) run(action);
      if (action.kind == ActionKind::kFree && action.at == 0) dropped_[action.target] = position_;
      if (action.kind == ActionKind::kCopy && action.to == 0) dropped_[action.target] = kHeld;
    }
  }

  std::vector<Recomputed> take() {
    std::vector<Recomputed> result;
    for (auto& [op, entry] : by_op_) {
      if (entry.runs > 1) result.push_back(std::move(entry));
    }
    std::stable_sort(result.begin(), result.end(),
                     [](const Recomputed& a, const Recomputed& b) { return a.extra > b.extra; });
    return result;
  }

 private:
  static constexpr int64_t kHeld = -1;

  void run(const BoundAction& action) {
    const Op& op = graph_.ops[action.target];
    const Variant& variant = op.variants[action.variant];
    for (const ValueIndex value : variant.reads) note_reader(value, op);
    Recomputed& entry = by_op_[action.target];
    entry.op = op.id;
    const bool again = entry.runs++ > 0;
    if (again) entry.extra += variant.time;
    if (action.at == 0) {
      for (const ValueIndex value : variant.consumes) dropped_[value] = position_;
      for (const auto& pair : variant.reuses) dropped_[pair.second] = position_;
    }
    for (const ValueIndex value : variant.writes) {
      const Bytes bytes = graph_.values[value].bytes;
      if (again) entry.bytes += bytes;
      if (action.at == 0) {
        const int64_t dropped = std::exchange(dropped_[value], kHeld);
        const bool over_peak = dropped != kHeld && dropped < peak_ && peak_ < position_;
        if (again && over_peak) entry.absent += bytes;
      }
      made_by_[value] = again ? action.target : -1;
    }
  }

  void note_reader(ValueIndex value, const Op& reader) {
    const OpIndex maker = std::exchange(made_by_[value], -1);
    if (maker < 0) return;
    Recomputed& entry = by_op_[maker];
    if (entry.reader.empty()) entry.reader = reader.id;
  }

  const Graph& graph_;
  int64_t peak_, position_ = 0;
  std::vector<int64_t> dropped_;  // by value: the action that dropped it from the device, or kHeld
  std::vector<OpIndex> made_by_;  // by value: the op whose re-run made it, until it is read; or -1
  std::map<OpIndex, Recomputed> by_op_;
};

// Returns the bytes that a run of the variant needs beside the values that it reads.
Bytes need(const Graph& graph, const Variant& variant) {
  Bytes bytes = variant.workspace;
  for (const ValueIndex value : variant.writes) bytes += graph.values[value].bytes;
  for (const auto& pair : variant.reuses) bytes -= graph.values[pair.second].bytes;
  return bytes;
}

// Returns the bytes that a run of the variant needs, with the values that it reads.
Bytes whole_need(const Graph& graph, const Variant& variant) {
  Bytes bytes = need(graph, variant);
  for (const ValueIndex value : variant.reads) {
    if (!starts_on_device(graph.values[value])) bytes += graph.values[value].bytes;
  }
  return bytes;
}

bool same(std::vector<ValueIndex> a, std::vector<ValueIndex> b) {
  std::sort(a.begin(), a.end());
  std::sort(b.begin(), b.end());
  return a == b;
}

// Returns the first variant of the op on the first device that reads and writes the same. Returns
// null if that is this variant.
const Variant* plain_variant(const Op& op, const Variant& variant) {
  for (const Variant& first : op.variants) {
    if (!first.at.empty()) continue;
    if (same(first.reads, variant.reads) && same(first.writes, variant.writes)) {
      return &first == &variant ? nullptr : &first;
    }
  }
  return nullptr;
}

// AlternativeUses adds up, by kind, what a plan runs in another way than plain training.
class AlternativeUses {
 public:
  AlternativeUses(const Graph& graph, const std::vector<BoundAction>& actions) : graph_(graph) {
    run_.assign(graph.ops.size(), -1);
    for (const BoundAction& action : actions) {
      if (action.kind != ActionKind::kRun) continue;
      run_[action.target] = action.variant;
      const Op& op = graph.ops[action.target];
      const Variant& variant = op.variants[action.variant];
      if (variant.role != Role::kAny) continue;
      if (const Variant* plain = plain_variant(op, variant)) {
        add(variant.alternative.empty() ? variant.name : variant.alternative, variant.time,
            plain->time, need(graph, *plain) - need(graph, variant), variant.error_ppm);
      } else if (op.phase == Phase::kBackward) {
        add_option(op, variant);
      }
    }
    for (const Choice& choice : graph.choices) {
      for (size_t r = 1; r < choice.realizations.size(); ++r) {
        const Realization& realization = choice.realizations[r];
        if (run_[realization.ops.front()] < 0) continue;
        const auto [time, bytes] = of(realization);
        const auto [plain_time, plain_bytes] = of(choice.realizations[0]);
        add(realization.name.empty() ? choice.id : realization.name, time, plain_time,
            plain_bytes - bytes, error_of(realization));
      }
    }
  }

  std::vector<AlternativeUse> take() {
    std::vector<AlternativeUse> all;
    for (auto& [kind, use] : uses_) all.push_back(std::move(use));
    return all;
  }

 private:
  // Returns the time of all ops of the realization, and the most bytes that one of them needs. An
  // op that does not run counts with its first variant.
  std::pair<Nanos, Bytes> of(const Realization& realization) const {
    Nanos time;
    Bytes most;
    for (const OpIndex op : realization.ops) {
      const Variant& variant = graph_.ops[op].variants[std::max(0, run_[op])];
      time += variant.time;
      most = std::max(most, whole_need(graph_, variant));
    }
    return {time, most};
  }

  int64_t error_of(const Realization& realization) const {
    int64_t most = 0;
    for (const OpIndex op : realization.ops) {
      most = std::max(most, graph_.ops[op].variants[std::max(0, run_[op])].error_ppm);
    }
    return most;
  }

  // Returns the saved value that the variant reads, or -1 if it reads none.
  ValueIndex kept_for(const Variant& variant) const {
    for (const ValueIndex value : variant.reads) {
      if (graph_.values[value].kind == ValueKind::kSaved) return value;
    }
    return -1;
  }

  // Returns the variant that writes the saved value. Returns null if there is none, which can
  // happen in a graph that lower() did not make.
  const Variant* keeper_of(ValueIndex kept) const {
    for (const Op& op : graph_.ops) {
      for (const Variant& variant : op.variants) {
        const auto& writes = variant.writes;
        if (std::find(writes.begin(), writes.end(), kept) != writes.end()) return &variant;
      }
    }
    return nullptr;
  }

  // Adds an option of a stage: its backward reads a saved value that plain training does not keep.
  void add_option(const Op& op, const Variant& variant) {
    const Variant& plain = op.variants.front();
    const ValueIndex kept = kept_for(variant), plainly_kept = kept_for(plain);
    if (kept < 0 || plainly_kept < 0 || kept == plainly_kept) return;
    const Variant *forward = keeper_of(kept), *plain_forward = keeper_of(plainly_kept);
    if (forward == nullptr || plain_forward == nullptr) return;
    add(variant.name, forward->time + variant.time, plain_forward->time + plain.time,
        graph_.values[plainly_kept].bytes - graph_.values[kept].bytes);
  }

  void add(const std::string& kind, Nanos time, Nanos plain_time, Bytes saved,
           int64_t error_ppm = 0) {
    AlternativeUse& use = uses_[kind];
    use.kind = kind;
    ++use.runs;
    use.time += time;
    use.plain_time += plain_time;
    use.saved = std::max(use.saved, saved);
    use.error_ppm = std::max(use.error_ppm, error_ppm);
  }

  const Graph& graph_;
  std::vector<int32_t> run_;  // by op: the variant that ran last, or -1
  std::map<std::string, AlternativeUse> uses_;
};

// Moves adds up, by value and by channel, what a plan copies.
class Moves {
 public:
  Moves(const Graph& graph, const Machine& machine, const std::vector<BoundAction>& actions,
        const Timeline& timeline)
      : graph_(graph), machine_(machine) {
    for (const Channel& channel : machine.channels) {
      channels_.push_back({name(channel.from), name(channel.to)});
    }
    for (const Transfer& transfer : timeline.transfers) carry(transfer);
    for (size_t a = 0; a < actions.size(); ++a) {
      if (actions[a].kind == ActionKind::kWait) wait(actions[a], timeline.steps[a].time);
    }
  }

  std::vector<Moved> moved() const {
    std::vector<Moved> all;
    for (const auto& [key, moved] : moved_) all.push_back(moved);
    std::stable_sort(all.begin(), all.end(), [](const Moved& a, const Moved& b) {
      return a.waited != b.waited ? a.waited > b.waited : a.bytes > b.bytes;
    });
    return all;
  }
  std::vector<ChannelUse> channels() const { return channels_; }

 private:
  const std::string& name(int32_t memory) const { return machine_.memories[memory].name; }

  // The entry of a copy is that of its end away from the device.
  Moved& entry(ValueIndex value, int32_t channel) {
    const Channel& ends = machine_.channels[channel];
    const int32_t memory = ends.to == 0 ? ends.from : ends.to;
    Moved& moved = moved_[{value, memory}];
    moved.value = graph_.values[value].id;
    moved.memory = name(memory);
    moved.bytes = graph_.values[value].bytes;
    return moved;
  }

  void carry(const Transfer& transfer) {
    ChannelUse& use = channels_[transfer.channel];
    ++use.copies;
    use.bytes += graph_.values[transfer.value].bytes;
    use.busy += transfer.end - transfer.start;
    ++entry(transfer.value, transfer.channel).copies;
    came_by_[{transfer.value, machine_.channels[transfer.channel].to}] = transfer.channel;
  }

  void wait(const BoundAction& action, Nanos time) {
    const auto found = came_by_.find({action.target, action.at});
    if (found == came_by_.end()) return;
    channels_[found->second].waited += time;
    entry(action.target, found->second).waited += time;
  }

  const Graph& graph_;
  const Machine& machine_;
  std::vector<ChannelUse> channels_;
  std::map<std::pair<ValueIndex, int32_t>, Moved> moved_;
  // These are the channels of the last copies to the places. A plan that copies a value to one
  // place by two channels has all its waits counted at the last of them.
  std::map<std::pair<ValueIndex, int32_t>, int32_t> came_by_;
};

std::vector<DeviceUse> find_devices(const Graph& graph, const Machine& machine,
                                    const std::vector<BoundAction>& actions,
                                    const Timeline& timeline) {
  std::vector<DeviceUse> devices;
  if (!has_devices(machine)) return devices;
  for (size_t m = 0; m < machine.memories.size(); ++m) {
    if (!computes(machine, static_cast<int32_t>(m))) continue;
    DeviceUse use{.name = machine.memories[m].name, .peak = timeline.peaks[m]};
    for (const BoundAction& action : actions) {
      if (action.kind != ActionKind::kRun || action.at != static_cast<int32_t>(m)) continue;
      ++use.runs;
      use.busy += graph.ops[action.target].variants[action.variant].time;
    }
    devices.push_back(std::move(use));
  }
  return devices;
}

std::optional<Bytes> bytes_at_loss(const Graph& graph, const std::vector<BoundAction>& actions,
                                   const Timeline& timeline) {
  std::optional<Bytes> most;
  for (size_t a = 0; a < actions.size(); ++a) {
    if (actions[a].kind != ActionKind::kRun || actions[a].at != 0) continue;
    if (graph.ops[actions[a].target].phase != Phase::kLoss) continue;
    most = std::max(most.value_or(Bytes(0)), timeline.steps[a].during);
  }
  return most;
}

std::string describe(const Action& action) {
  std::string text = to_string(action.kind);
  for (const std::string* name : {&action.id, &action.variant, &action.at, &action.to}) {
    if (!name->empty()) text += " " + *name;
  }
  return text;
}

}  // namespace

Explanation explain(const Graph& graph, const Plan& plan, const Machine& machine) {
  if (const auto placed = as_placed(graph, plan.actions)) return explain(*placed, plan, machine);
  Explanation result;
  validate(graph);
  validate(machine);
  require_homes(graph, machine);
  const std::vector<BoundAction> actions = bind(graph, plan.actions, machine);
  result.timeline = simulate(graph, actions, machine);
  const int64_t peak = result.timeline.peak_action;
  result.peak_action = peak < 0 ? "start" : describe(plan.actions[peak]);
  result.holders = Peak(graph, actions, peak).holders();
  result.recomputed = ReRuns(graph, actions, peak).take();
  for (const Recomputed& entry : result.recomputed) result.recomputed_time += entry.extra;
  result.at_loss = bytes_at_loss(graph, actions, result.timeline);
  result.alternatives = AlternativeUses(graph, actions).take();
  try {
    result.baseline = baseline(graph);
  } catch (const InputError&) {
    // Some operation of plain training cannot run on the first device.
  }
  const Moves moves(graph, machine, actions, result.timeline);
  result.moved = moves.moved();
  result.channels = moves.channels();
  result.devices = find_devices(graph, machine, actions, result.timeline);
  return result;
}

}  // namespace reprise
