#include "runtime/online/lower_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>


namespace reprise::runtime::internal::online {


namespace {

class Lowering {
 public:
  Lowering(const Trace& trace, int64_t smallest)
      : trace_(trace),
        smallest_(smallest),
        value_of_(trace.values.size(), -1),
        over_at_(trace.values.size(), INT32_MAX),
        stays_until_(trace.calls.size()) {
    for (size_t v = 0; v < trace.values.size(); ++v) {
      const TracedValue& value = trace.values[v];
      if (value.previous >= 0) over_at_[value.previous] = value.maker;
    }
    for (size_t v = 0; v < trace.values.size(); ++v) note_stay(v);
    for (const Trace::Hold& hold : trace.holds) {
      std::vector<int32_t>& held = stays_until_[hold.call];
      if (!is_over_at(hold)) held.push_back(hold.value);
    }
  }

  LoweredTrace run() {
    graph_.name = "online";
    for (size_t c = 0; c < trace_.calls.size(); ++c) add_call(c);
    for (size_t v = 0; v < trace_.values.size(); ++v) {
      const bool held = trace_.values[v].at_the_end && over_at_[v] == INT32_MAX;
      if (held && value_of_[v] >= 0) graph_.results.push_back(value_of_[v]);
    }
    return {std::move(graph_), std::move(serials_)};
  }

 private:
  // A value that can no longer be made again has to be there at that moment, and at its end.
  void note_stay(size_t v) {
    const TracedValue& value = trace_.values[v];
    if (value.outside || value.maker < 0 || over_at_[v] != INT32_MAX) return;
    const auto read_at = [&](int32_t calls_before) {
      const int32_t call = std::max(calls_before - 1, value.maker + 1);
      if (call >= std::ssize(trace_.calls)) return;
      stays_until_[call].push_back(static_cast<int32_t>(v));
    };
    const bool makeable = trace_.calls[value.maker].can_run_again;
    if (makeable && value.anchored < 0) return;
    if (value.anchored >= 0) read_at(value.anchored);
    if (value.gone >= 0) read_at(value.gone);
  }

  // Says whether the call or one before it has written over the value.
  bool is_over_at(const Trace::Hold& hold) const { return over_at_[hold.value] <= hold.call; }

  void add_value(int32_t serial, Phase phase) {
    const TracedValue& value = trace_.values[serial];
    value_of_[serial] = static_cast<ValueIndex>(graph_.values.size());
    serials_.push_back(serial);
    graph_.values.push_back(
        {fmt::format("{}", serial), Bytes(value.counted),
         phase == Phase::kForward ? ValueKind::kActivation : ValueKind::kGradient});
  }

  // Adds what the graph knows of these values, each once.
  template <class List>
  void add_known(std::vector<ValueIndex>& all, const List& serials) const {
    for (const int32_t serial : serials) {
      const ValueIndex value = value_of_[serial];
      if (value >= 0 && std::find(all.begin(), all.end(), value) == all.end()) all.push_back(value);
    }
  }

  void add_call(size_t c) {
    const TracedCall& call = trace_.calls[c];
    Op op;
    op.id = fmt::format("{}", c);
    op.phase = call.backward ? Phase::kBackward : Phase::kForward;
    op.once = !call.can_run_again;
    Variant variant;
    variant.time = Nanos(std::llround(std::max(0.0, call.cost)));
    variant.workspace = Bytes(call.workspace);
    add_known(variant.reads, trace_.reads(c));
    for (const int32_t serial : trace_.made(c)) {
      const TracedValue& value = trace_.values[serial];
      if (value.outside || value.bytes < smallest_) continue;
      add_value(serial, op.phase);
      const ValueIndex made = value_of_[serial];
      variant.writes.push_back(made);
      if (value.previous >= 0) add_takeover(variant, made, value_of_[value.previous]);
    }
    Variant first = variant;
    add_known(first.reads, trace_.looked_at(c));
    add_known(first.reads, stays_until_[c]);
    std::erase_if(first.reads, [&](ValueIndex value) {
      return std::find(first.writes.begin(), first.writes.end(), value) != first.writes.end();
    });
    const bool same = first.reads.size() == variant.reads.size();
    if (!same && call.can_run_again && !call.backward) {
      first.name = "first";
      first.role = Role::kFirst;
      variant.name = "replay";
      variant.role = Role::kReplay;
      op.variants = {std::move(first), std::move(variant)};
    } else {
      op.variants = {std::move(first)};
    }
    graph_.ops.push_back(std::move(op));
  }

  // Another size means other memory.
  void add_takeover(Variant& variant, ValueIndex made, ValueIndex before) const {
    if (before < 0) return;
    const auto bytes = [&](ValueIndex value) { return graph_.values[value].bytes; };
    const std::vector<ValueIndex>& reads = variant.reads;
    if (std::find(reads.begin(), reads.end(), before) == reads.end()) return;
    if (bytes(made) == bytes(before)) variant.reuses.emplace_back(made, before);
  }

  const Trace& trace_;
  const int64_t smallest_;
  std::vector<ValueIndex> value_of_;  // by serial; -1: no value of the graph
  std::vector<int32_t> over_at_;      // by serial: the call that wrote over it; INT32_MAX: none did
  std::vector<std::vector<int32_t>> stays_until_;  // by call
  Graph graph_;
  std::vector<int32_t> serials_;  // by value of the graph
};

}  // namespace

LoweredTrace lower(const Trace& trace, int64_t smallest) { return Lowering(trace, smallest).run(); }

int64_t most_small_bytes(const Trace& trace, int64_t smallest) {
  std::vector<int64_t> change(trace.calls.size() + 1, 0);
  for (const TracedValue& value : trace.values) {
    if (value.outside || value.maker < 0 || value.bytes >= smallest) continue;
    const int64_t bytes = value.counted;
    change[value.maker] += bytes;
    // `gone` is the number of calls before it was seen to be gone.
    if (value.gone >= 0 && value.gone < std::ssize(change)) {
      change[value.gone] -= bytes;
    }
  }
  int64_t bytes = 0, most = 0;
  for (const int64_t more : change) {
    bytes += more;
    most = std::max(most, bytes);
  }
  return most;
}

}  // namespace reprise::runtime::internal::online
