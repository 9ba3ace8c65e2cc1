#include "capture/captured_graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "capture/operators.h"

namespace reprise::runtime {
namespace {

Bytes as_counted(int64_t bytes) { return Bytes((bytes + 63) / 64 * 64); }

// The values that a call touches.
struct Touched {
  std::vector<int32_t> reads, writes;                   // step values, in order, each once
  std::vector<std::pair<int32_t, int32_t>> overwrites;  // (new version, old version)
};

void add_once(std::vector<int32_t>& list, int32_t value) {
  if (std::find(list.begin(), list.end(), value) == list.end()) list.push_back(value);
}

class Lowering {
 public:
  Lowering(const Recording& recording, const std::vector<CallCost>& costs)
      : recording_(recording), costs_(costs), touched_(recording.calls.size()) {
    for (size_t c = 0; c < recording.calls.size(); ++c) {
      for (const Argument& argument : recording.calls[c].arguments) {
        if (argument.shape_only) continue;
        for (const TensorRef& ref : argument.tensors) {
          if (ref.memory == Memory::kValue) add_once(touched_[c].reads, ref.index);
        }
      }
    }
    for (size_t v = 0; v < recording.values.size(); ++v) {
      const StepValue& value = recording.values[v];
      Touched& maker = touched_[static_cast<size_t>(value.maker)];
      maker.writes.push_back(static_cast<int32_t>(v));
      if (value.previous < 0) continue;
      maker.overwrites.emplace_back(static_cast<int32_t>(v), value.previous);
      add_once(maker.reads, value.previous);
    }
    find_needed();
    find_effects();
  }

  CapturedGraph run(const Tensors& inputs, Bytes fixed, const std::string& name) {
    Graph& graph = result_.graph;
    graph.name = name;
    graph.fixed = fixed;
    std::set<const void*> seen;  // inputs may share memory
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (!inputs[i].defined()) continue;
      const c10::Storage& storage = inputs[i].storage();
      if (!seen.insert(storage.unsafeGetStorageImpl()).second) continue;
      graph.values.push_back({fmt::format("input{}", i),
                              as_counted(static_cast<int64_t>(storage.nbytes())),
                              ValueKind::kInput});
      result_.step_value_of.push_back(-1);
    }
    value_of_.assign(recording_.values.size(), -1);
    const size_t loss = find_loss();
    for (size_t c = 0; c < recording_.calls.size(); ++c) {
      if (needed_[c]) add_op(c, c == loss);
    }
    for (const TensorRef& ref : results()) {
      if (ref.memory == Memory::kValue) {
        add_once(graph.results, value_of_[static_cast<size_t>(ref.index)]);
      }
    }
    return std::move(result_);
  }

 private:
  std::vector<TensorRef> results() const {
    std::vector<TensorRef> all = recording_.outputs;
    for (const LeafGradient& leaf : recording_.gradients) all.push_back(leaf.gradient);
    return all;
  }

  // Backwards from results, effects and random numbers.
  void find_needed() {
    needed_.assign(recording_.calls.size(), false);
    std::vector<bool> wanted(recording_.values.size(), false);
    for (const TensorRef& ref : results()) {
      if (ref.memory == Memory::kValue) wanted[static_cast<size_t>(ref.index)] = true;
    }
    for (size_t c = recording_.calls.size(); c-- > 0;) {
      const Call& call = recording_.calls[c];
      const auto& writes = touched_[c].writes;
      needed_[c] = call.random || !call.effects.empty() ||
                   std::any_of(writes.begin(), writes.end(),
                               [&](int32_t v) { return wanted[static_cast<size_t>(v)]; });
      if (!needed_[c]) continue;
      for (const int32_t v : touched_[c].reads) wanted[static_cast<size_t>(v)] = true;
    }
  }

  // How many calls touch each external that some call writes.
  void find_effects() {
    users_.assign(recording_.externals.size(), 0);
    written_.assign(recording_.externals.size(), false);
    for (size_t c = 0; c < recording_.calls.size(); ++c) {
      if (!needed_[c]) continue;
      for (const int32_t e : externals_of(recording_.calls[c])) ++users_[static_cast<size_t>(e)];
      for (const int32_t e : recording_.calls[c].effects) written_[static_cast<size_t>(e)] = true;
    }
  }

  static std::set<int32_t> externals_of(const Call& call) {
    std::set<int32_t> all(call.effects.begin(), call.effects.end());
    for (const Argument& argument : call.arguments) {
      if (argument.shape_only) continue;
      for (const TensorRef& ref : argument.tensors) {
        if (ref.memory == Memory::kExternal) all.insert(ref.index);
      }
    }
    return all;
  }

  // A batch norm whose statistics nobody else touches can run again without them.
  bool has_replay(const Call& call) const {
    std::vector<size_t> statistics;
    if (call.effects.empty() || !is_batch_norm(call, &statistics)) return false;
    return std::all_of(call.effects.begin(), call.effects.end(),
                       [&](int32_t e) { return users_[static_cast<size_t>(e)] == 1; });
  }

  bool runs_once(const Call& call) const {
    if (has_replay(call)) return false;
    for (const int32_t e : externals_of(call)) {
      if (written_[static_cast<size_t>(e)]) return true;
    }
    return false;
  }

  // The last forward call before the first backward call.
  size_t find_loss() const {
    size_t loss = recording_.calls.size();
    for (size_t c = 0; c < recording_.calls.size(); ++c) {
      if (!needed_[c]) continue;
      if (recording_.calls[c].phase == Phase::kBackward) return loss;
      loss = c;
    }
    return recording_.calls.size();
  }

  void add_op(size_t c, bool is_loss) {
    const Call& call = recording_.calls[c];
    Op op;
    op.id = fmt::format("{}:{}", result_.graph.ops.size(), call.name());
    op.phase = is_loss ? Phase::kLoss : call.phase;
    op.random = call.random;
    op.once = runs_once(call);
    for (size_t w = 0; w < touched_[c].writes.size(); ++w) add_value(touched_[c], w, op);
    Variant variant;
    variant.time = costs_[c].time;
    variant.workspace = costs_[c].workspace;
    variant.reads = in_graph(touched_[c].reads);
    variant.writes = in_graph(touched_[c].writes);
    for (const auto& [now, before] : touched_[c].overwrites) {
      variant.reuses.emplace_back(value_of_[static_cast<size_t>(now)],
                                  value_of_[static_cast<size_t>(before)]);
    }
    if (has_replay(call)) {
      variant.name = "first";
      variant.role = Role::kFirst;
      op.variants.push_back(variant);
      variant.name = kReplayVariant;
      variant.role = Role::kReplay;
    }
    op.variants.push_back(std::move(variant));
    result_.graph.ops.push_back(std::move(op));
    result_.call_of_op.push_back(static_cast<int32_t>(c));
  }

  void add_value(const Touched& touched, size_t w, const Op& op) {
    const auto v = static_cast<size_t>(touched.writes[w]);
    const bool alone = touched.writes.size() == 1;
    value_of_[v] = static_cast<int32_t>(result_.graph.values.size());
    result_.graph.values.push_back(
        {alone ? op.id + ".out" : fmt::format("{}.{}", op.id, w),
         as_counted(recording_.values[v].bytes),
         op.phase == Phase::kBackward ? ValueKind::kGradient : ValueKind::kActivation});
    result_.step_value_of.push_back(static_cast<int32_t>(v));
  }

  std::vector<ValueIndex> in_graph(const std::vector<int32_t>& values) const {
    std::vector<ValueIndex> all;
    for (const int32_t v : values) all.push_back(value_of_[static_cast<size_t>(v)]);
    return all;
  }

  const Recording& recording_;
  const std::vector<CallCost>& costs_;
  std::vector<Touched> touched_;   // by call
  std::vector<bool> needed_;       // by call
  std::vector<int32_t> users_;     // by external: calls that touch it
  std::vector<bool> written_;      // by external
  std::vector<int32_t> value_of_;  // by step value
  CapturedGraph result_;
};

}  // namespace

CapturedGraph lower(const Recording& recording, const std::vector<CallCost>& costs,
                    const Tensors& inputs, Bytes fixed, const std::string& name) {
  return Lowering(recording, costs).run(inputs, fixed, name);
}

}  // namespace reprise::runtime
