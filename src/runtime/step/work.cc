#include "runtime/step/work.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <sstream>

#include "runtime/step/operators.h"

namespace reprise::runtime::internal::step {

void add_once(std::vector<int32_t>& list, int32_t value) {
  if (std::find(list.begin(), list.end(), value) == list.end()) list.push_back(value);
}

namespace {

Work work_of(const Recording& recording, size_t c) {
  const Call& call = recording.calls[c];
  Work work{.name = call.name(),
            .kernel = [op = call.op](std::vector<c10::IValue>& stack) { op.callBoxed(stack); },
            .arguments = call.arguments,
            .grad_mode = call.grad_mode,
            .effects = call.effects};
  std::vector<int32_t> taken;
  for (size_t r = 0; r < call.outputs.size(); ++r) {
    for (size_t k = 0; k < call.outputs[r].size(); ++k) {
      const TensorRef& ref = call.outputs[r][k];
      if (ref.memory != Memory::kValue) continue;
      const StepValue& value = recording.values[ref.index];
      if (value.maker != static_cast<int32_t>(c) || value.previous >= 0) continue;
      const size_t before = taken.size();
      add_once(taken, ref.index);
      if (taken.size() > before) work.made.push_back({r, k, ref.index});
    }
  }
  return work;
}

std::string kind_of(const TensorRef& ref) {
  if (ref.memory == Memory::kNone) return "-";
  const Geometry& g = ref.geometry;
  return fmt::format("{}[{}|{}|{}]", c10::toString(g.dtype), fmt::join(g.sizes, ","),
                     fmt::join(g.strides, ","), g.offset % 16);
}

// Says whether a batch norm computes the same without its statistics. In lower precision the type
// of any other parameter decides in which type it computes.
bool same_without(const Call& batch_norm, const std::vector<size_t>& statistics) {
  const c10::ScalarType type = batch_norm.arguments.at(0).tensors.at(0).geometry.dtype;
  for (size_t a = 0; a < batch_norm.arguments.size(); ++a) {
    for (const TensorRef& ref : batch_norm.arguments[a].tensors) {
      const bool mixed = ref.memory != Memory::kNone && ref.geometry.dtype != type;
      const bool is_statistic =
          std::find(statistics.begin(), statistics.end(), a) != statistics.end();
      if (mixed && !is_statistic) return true;  // The weight still decides the type.
    }
  }
  return std::all_of(statistics.begin(), statistics.end(), [&](size_t a) {
    const auto& tensors = batch_norm.arguments[a].tensors;
    return tensors.empty() || tensors[0].memory == Memory::kNone ||
           tensors[0].geometry.dtype == type;
  });
}

}  // namespace

std::vector<int32_t> externals_of(const Call& call) {
  std::set<int32_t> all(call.effects.begin(), call.effects.end());
  for (const Argument& argument : call.arguments) {
    if (argument.shape_only) continue;
    for (const TensorRef& ref : argument.tensors) {
      if (ref.memory == Memory::kExternal) all.insert(ref.index);
    }
  }
  return {all.begin(), all.end()};
}

std::vector<bool> versioned(const Recording& recording) {
  std::vector<bool> written(recording.externals.size(), false), read(written);
  for (const Call& call : recording.calls) {
    for (const int32_t e : externals_of(call)) {
      const auto& writes = call.effects;
      const bool is_write = std::find(writes.begin(), writes.end(), e) != writes.end();
      (is_write ? written : read)[e] = true;
    }
  }
  for (size_t e = 0; e < written.size(); ++e) written[e] = written[e] && read[e];
  return written;
}

Works works_of(const Recording& recording) {
  Works works;
  for (size_t c = 0; c < recording.calls.size(); ++c) works.all.push_back(work_of(recording, c));
  for (size_t v = 0; v < recording.values.size(); ++v) {
    const StepValue& value = recording.values[v];
    if (value.previous < 0) continue;
    works.all[value.maker].overwrites.emplace_back(static_cast<int32_t>(v), value.previous);
  }
  works.rerun.assign(recording.calls.size(), -1);
  for (size_t c = 0; c < recording.calls.size(); ++c) {
    std::vector<size_t> statistics;
    const Call& call = recording.calls[c];
    if (call.effects.empty() || !is_batch_norm(call, &statistics)) continue;
    if (!same_without(call, statistics)) continue;
    Work replay = works.all[c];
    for (const size_t a : statistics) replay.arguments[a] = Argument{};
    replay.effects.clear();
    works.rerun[c] = static_cast<int32_t>(works.all.size());
    works.all.push_back(std::move(replay));
  }
  const std::vector<bool> versions = versioned(recording);
  if (std::find(versions.begin(), versions.end(), true) != versions.end()) {
    works.before = static_cast<int32_t>(works.all.size());
    works.all.push_back({.name = "state",
                         .kernel = [](std::vector<c10::IValue>&) {},
                         .arguments = {},
                         .apart = true});
  }
  return works;
}

std::vector<int32_t> values_read(const Work& work) {
  std::vector<int32_t> reads;
  for (const Argument& argument : work.arguments) {
    if (argument.shape_only) continue;
    for (const TensorRef& ref : argument.tensors) {
      if (ref.memory == Memory::kValue) add_once(reads, ref.index);
    }
  }
  for (const auto& [now, before] : work.overwrites) add_once(reads, before);
  return reads;
}

std::vector<int32_t> values_written(const Work& work) {
  std::vector<int32_t> writes;
  for (const Work::Made& made : work.made) writes.push_back(made.value);
  for (const auto& [now, before] : work.overwrites) writes.push_back(now);
  return writes;
}

std::string kind_of(const Work& work) {
  std::ostringstream key;
  key << work.name;
  for (const Argument& argument : work.arguments) {
    key << ';';
    if (argument.kind == ArgumentKind::kConstant) {
      key << argument.constant;
    } else {
      for (const TensorRef& ref : argument.tensors) key << kind_of(ref) << ' ';
    }
  }
  return key.str();
}

}  // namespace reprise::runtime::internal::step
