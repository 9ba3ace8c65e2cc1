#include "reprise/run/bookkeeping.h"

#include <fmt/format.h>

#include <algorithm>

#include "reprise/model/errors.h"

namespace reprise {

BookkeepingBackend::BookkeepingBackend(const Graph& graph, const Machine* machine)
    : graph_(graph), machine_(machine), runs_(graph.ops.size(), 0) {
  const size_t memories = machine == nullptr ? 1 : machine->memories.size();
  levels_.assign(memories, Bytes(0));
  peaks_ = levels_;
  clocks_.assign(memories, Nanos(0));
  levels_[0] = graph.fixed;
  for (size_t v = 0; v < graph.values.size(); ++v) {
    const Value& value = graph.values[v];
    if (value.kind != ValueKind::kInput) continue;
    if (starts_on_device(value)) {
      hold(static_cast<ValueIndex>(v), 0);
    } else if (machine != nullptr) {
      hold(static_cast<ValueIndex>(v), find_memory(*machine, value.home));
    }
  }
  peaks_ = levels_;
}

// Allocates and frees in the order of a real backend. First it frees the values that the op gives
// back. Then it allocates the workspace and the outputs. At last it frees the workspace and second
// copies.
void BookkeepingBackend::run(const RunAction& step) {
  const Op& op = graph_.ops.at(step.op);
  const Variant& variant = op.variants.at(step.variant);
  for (const ValueIndex value : variant.reads) {
    if (held_[{value, step.memory}].here) continue;
    throw InternalError(fmt::format("{} {} reads {}, which is not there", op.id, variant.name,
                                    graph_.values[value].id));
  }
  for (const ValueIndex value : variant.consumes) drop(value, step.memory);
  for (const auto& [written, read] : variant.reuses) drop(read, step.memory);
  Bytes transient = variant.workspace;
  levels_[step.memory] += variant.workspace;
  for (const ValueIndex value : variant.writes) {
    if (held_[{value, step.memory}].here) {
      transient += graph_.values[value].bytes;
      levels_[step.memory] += graph_.values[value].bytes;
    } else {
      hold(value, step.memory);
    }
  }
  peaks_[step.memory] = std::max(peaks_[step.memory], levels_[step.memory]);
  levels_[step.memory] -= transient;
  clocks_[step.memory] += variant.time;
  ++runs_[step.op];
}

void BookkeepingBackend::copy(const CopyAction& copy) {
  if (machine_ == nullptr) return Backend::copy(copy);
  Held& source = held_[{copy.value, copy.from}];
  Nanos& free = channel_free_[queue_of(*machine_, copy.channel)];
  Nanos start =
      std::max({clocks_[copy.from], clocks_[copy.to],
                clocks_[waiting_device(*machine_, copy.from, copy.to)], free, source.came});
  for (const int64_t earlier : copy.after) start = std::max(start, ends_.at(earlier));
  free = start + copy_time(machine_->channels[copy.channel], graph_.values[copy.value].bytes);
  ends_[copy.action] = free;
  source.over = std::max(source.over, free);
  hold(copy.value, copy.to);
  Held& target = held_[{copy.value, copy.to}];
  target.from = copy.from;
  target.came = target.over = free;
}

void BookkeepingBackend::wait(ValueIndex value, int32_t memory) {
  if (machine_ == nullptr) return Backend::wait(value, memory);
  const auto found = held_.find({value, memory});
  if (found == held_.end()) return;
  Nanos& clock = clocks_[waiting_device(*machine_, found->second.from, memory)];
  clock = std::max({clock, found->second.came, found->second.went});
}

void BookkeepingBackend::send(const CopyAction& message) {
  if (machine_ == nullptr) return Backend::send(message);
  handed_[queue_of(*machine_, message.channel)].push_back({message, clocks_[message.from]});
  carry(message.channel);
}

void BookkeepingBackend::receive(const CopyAction& message) {
  if (machine_ == nullptr) return Backend::receive(message);
  hold(message.value, message.to);
  held_[{message.value, message.to}].from = message.from;
  rooms_[{message.value, message.to}] = clocks_[message.to];
  carry(message.channel);
}

// Carries what was handed over first while there is room for it.
void BookkeepingBackend::carry(int32_t channel) {
  const int32_t queue = queue_of(*machine_, channel);
  for (std::deque<Handed>& waiting = handed_[queue]; !waiting.empty(); waiting.pop_front()) {
    const auto& [message, at] = waiting.front();
    const auto room = rooms_.find({message.value, message.to});
    if (room == rooms_.end()) return;
    Held& source = held_[{message.value, message.from}];
    Held& target = held_[{message.value, message.to}];
    Nanos& free = channel_free_[queue];
    free = std::max({free, at, room->second, source.came}) +
           copy_time(machine_->channels[message.channel], graph_.values[message.value].bytes);
    source.over = std::max(source.over, free);
    source.went = std::max(source.went, free);
    target.came = target.over = free;
    rooms_.erase(room);
  }
}

Nanos BookkeepingBackend::time() const { return *std::max_element(clocks_.begin(), clocks_.end()); }

void BookkeepingBackend::hold(ValueIndex value, int32_t memory) {
  held_[{value, memory}].here = true;
  levels_[memory] += graph_.values[value].bytes;
  peaks_[memory] = std::max(peaks_[memory], levels_[memory]);
}

// Waits for the copies of the value, which another device may have waited for.
void BookkeepingBackend::drop(ValueIndex value, int32_t memory) {
  const auto found = held_.find({value, memory});
  if (found == held_.end() || !found->second.here) {
    throw InternalError(fmt::format("{} is freed but not there", graph_.values[value].id));
  }
  clocks_[memory] = std::max(clocks_[memory], found->second.over);
  held_.erase(found);
  levels_[memory] -= graph_.values[value].bytes;
}

}  // namespace reprise
