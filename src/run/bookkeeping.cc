#include "reprise/run/bookkeeping.h"

#include <fmt/format.h>

#include <algorithm>

#include "reprise/model/errors.h"

namespace reprise {

BookkeepingBackend::BookkeepingBackend(const Graph& graph, const Machine* machine)
    : graph_(graph),
      machine_(machine),
      present_(graph.values.size(), false),
      runs_(graph.ops.size(), 0),
      live_(graph.fixed) {
  for (size_t v = 0; v < graph.values.size(); ++v) {
    const Value& value = graph.values[v];
    if (value.kind != ValueKind::kInput) continue;
    if (starts_on_device(value)) {
      present_[v] = true;
      live_ += value.bytes;
    } else if (machine != nullptr) {
      const int32_t home = find_memory(*machine, value.home);
      copied_[{static_cast<ValueIndex>(v), home}] = {.here = true, .over = Nanos(0)};
      levels_[home].first += value.bytes;
    }
  }
  for (auto& [memory, level] : levels_) level.second = level.first;
  peak_ = live_;
}

// Allocates and frees in the order of a real backend. First it frees the values that the op gives
// back. Then it allocates the workspace and the outputs. At last it frees the workspace and second
// copies.
void BookkeepingBackend::run(const RunAction& step) {
  const Op& op = graph_.ops.at(step.op);
  const Variant& variant = op.variants.at(step.variant);
  for (const ValueIndex value : variant.reads) {
    if (present_[value]) continue;
    throw InternalError(fmt::format("{} {} reads {}, which is not there", op.id, variant.name,
                                    graph_.values[value].id));
  }
  for (const ValueIndex value : variant.consumes) free(value);
  for (const auto& [written, read] : variant.reuses) free(read);
  Bytes transient = variant.workspace;
  live_ += variant.workspace;
  for (const ValueIndex value : variant.writes) {
    live_ += graph_.values[value].bytes;
    if (present_[value]) transient += graph_.values[value].bytes;
    present_[value] = true;
  }
  peak_ = std::max(peak_, live_);
  live_ -= transient;
  time_ += variant.time;
  ++runs_[step.op];
}

void BookkeepingBackend::free(ValueIndex value) {
  if (!present_.at(value)) {
    throw InternalError(fmt::format("{} is freed but not there", graph_.values[value].id));
  }
  present_[value] = false;
  live_ -= graph_.values[value].bytes;
  copied_.erase({value, 0});
}

void BookkeepingBackend::copy(const CopyAction& copy) {
  if (machine_ == nullptr) return Backend::copy(copy);
  const Bytes bytes = graph_.values[copy.value].bytes;
  Nanos& free = channel_free_[queue_of(*machine_, copy.channel)];
  Nanos start = std::max({time_, free, copied_[{copy.value, copy.from}].over});
  for (const int64_t earlier : copy.after) start = std::max(start, ends_.at(earlier));
  free = start + copy_time(machine_->channels[copy.channel], bytes);
  ends_[copy.action] = free;
  copied_[{copy.value, copy.to}] = {.here = true, .over = free};
  if (copy.to == 0) {
    present_[copy.value] = true;
    live_ += bytes;
    peak_ = std::max(peak_, live_);
  } else {
    auto& [now, most] = levels_[copy.to];
    now += bytes;
    most = std::max(most, now);
  }
}

void BookkeepingBackend::wait(ValueIndex value, int32_t memory) {
  if (machine_ == nullptr) return Backend::wait(value, memory);
  const auto found = copied_.find({value, memory});
  if (found != copied_.end()) time_ = std::max(time_, found->second.over);
}

void BookkeepingBackend::free_elsewhere(ValueIndex value, int32_t memory) {
  const auto found = copied_.find({value, memory});
  if (found == copied_.end() || !found->second.here) {
    throw InternalError(
        fmt::format("{} is freed elsewhere but not there", graph_.values[value].id));
  }
  copied_.erase(found);
  levels_[memory].first -= graph_.values[value].bytes;
}

Bytes BookkeepingBackend::peak_elsewhere(int32_t memory) const {
  const auto found = levels_.find(memory);
  return found == levels_.end() ? Bytes(0) : found->second.second;
}

}  // namespace reprise
