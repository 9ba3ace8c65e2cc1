#include "reprise/model/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <unordered_set>

#include "model/contains.h"
#include "reprise/model/errors.h"

namespace reprise {

using internal::model::contains;

namespace {

// Next says what the runs after a point do first to a value.
enum class Next : char { kNothing, kRead, kWrite };

// Says whether the run itself takes the memory of this value: it consumes the value or reuses it.
bool takes(const Variant& variant, ValueIndex value) {
  return contains(variant.consumes, value) ||
         std::any_of(variant.reuses.begin(), variant.reuses.end(),
                     [&](const auto& pair) { return pair.second == value; });
}

const Variant& variant_of(const Graph& graph, const Run& run) {
  if (run.op < 0 || static_cast<size_t>(run.op) >= graph.ops.size() || run.variant < 0 ||
      static_cast<size_t>(run.variant) >= graph.ops[run.op].variants.size()) {
    throw InternalError(fmt::format("no variant {} of operation {}", run.variant, run.op));
  }
  return graph.ops[run.op].variants[run.variant];
}

// Returns for every run the values to free after it, in ascending order. A value dies at the last
// run that touches it before it is written again, so that only the values that a run touches need a
// look.
std::vector<std::vector<ValueIndex>> find_frees(const Graph& graph, const std::vector<Run>& runs) {
  std::vector<char> is_result(graph.values.size(), 0);
  for (const ValueIndex result : graph.results) is_result[result] = 1;
  std::vector<Next> next(graph.values.size(), Next::kNothing);
  std::vector<std::vector<ValueIndex>> frees(runs.size());
  for (size_t r = runs.size(); r-- > 0;) {
    const Variant& variant = variant_of(graph, runs[r]);
    for (const auto* list : {&variant.reads, &variant.writes}) {
      for (const ValueIndex value : *list) {
        const bool stays = graph.values[value].kind == ValueKind::kInput ||
                           next[value] == Next::kRead ||
                           (next[value] == Next::kNothing && is_result[value]);
        if (!stays && !takes(variant, value)) frees[r].push_back(value);
      }
    }
    std::sort(frees[r].begin(), frees[r].end());
    for (const ValueIndex value : variant.writes) next[value] = Next::kWrite;
    for (const ValueIndex value : variant.reads) next[value] = Next::kRead;
  }
  return frees;
}

}  // namespace

bool same_problem(const ProblemId& a, const ProblemId& b) {
  const bool other_hash = !a.sha256.empty() && !b.sha256.empty() && a.sha256 != b.sha256;
  return a.format == b.format && a.name == b.name && !other_hash;
}

std::vector<Action> with_frees(const Graph& graph, const std::vector<Run>& runs) {
  const std::vector<std::vector<ValueIndex>> frees = find_frees(graph, runs);
  std::vector<char> live(graph.values.size(), 0);
  for (size_t v = 0; v < graph.values.size(); ++v) {
    live[v] = graph.values[v].kind == ValueKind::kInput;
  }
  std::vector<Action> actions;
  for (size_t r = 0; r < runs.size(); ++r) {
    const Variant& variant = variant_of(graph, runs[r]);
    const std::string& op = graph.ops[runs[r].op].id;
    for (const ValueIndex value : variant.reads) {
      if (!live[value]) {
        throw InternalError(fmt::format("run {} ({} {}) reads {}, which is not there", r, op,
                                        variant.name, graph.values[value].id));
      }
    }
    actions.push_back({ActionKind::kRun, op, variant.name});
    for (const ValueIndex value : variant.reads) live[value] = !takes(variant, value);
    for (const ValueIndex value : variant.writes) live[value] = 1;
    for (const ValueIndex value : frees[r]) {
      live[value] = 0;
      actions.push_back({ActionKind::kFree, graph.values[value].id, ""});
    }
  }
  return actions;
}

namespace {

// Returns the first variant that can be the only run of its op: it runs on the first device, it
// writes all values that later runs need from the op, and it takes none that they read.
int32_t plain_variant(const Graph& graph, const Op& op, const std::vector<char>& needed) {
  // A list of writes names no value twice, so that counting is enough.
  std::unordered_set<ValueIndex> wanted;
  for (const Variant& variant : op.variants) {
    for (const ValueIndex value : variant.writes) {
      if (needed[value]) wanted.insert(value);
    }
  }
  const auto serves = [&](const Variant& variant) {
    if (variant.role == Role::kReplay || !variant.at.empty()) return false;
    const auto written = std::count_if(variant.writes.begin(), variant.writes.end(),
                                       [&](ValueIndex value) { return needed[value] != 0; });
    if (static_cast<size_t>(written) < wanted.size()) return false;
    return std::none_of(variant.reads.begin(), variant.reads.end(),
                        [&](ValueIndex value) { return needed[value] && takes(variant, value); });
  };
  const auto found = std::find_if(op.variants.begin(), op.variants.end(), serves);
  if (found == op.variants.end()) {
    throw InputError(
        fmt::format("graph \"{}\" has no plain training: no variant of \"{}\" on the first device "
                    "writes all that "
                    "the operations after it read and leaves what they read alone",
                    graph.name, op.id));
  }
  return static_cast<int32_t>(found - op.variants.begin());
}

}  // namespace

std::vector<Run> plain_runs(const Graph& graph) {
  std::vector<char> skipped(graph.ops.size(), 0);
  for (const Choice& choice : graph.choices) {
    for (size_t r = 1; r < choice.realizations.size(); ++r) {
      for (const OpIndex op : choice.realizations[r].ops) skipped[op] = 1;
    }
  }
  std::vector<char> needed(graph.values.size(), 0);  // by value: whether a later run reads it
  for (const ValueIndex result : graph.results) needed[result] = 1;
  std::vector<Run> runs;
  for (size_t o = graph.ops.size(); o-- > 0;) {
    if (skipped[o]) continue;
    const int32_t choice = plain_variant(graph, graph.ops[o], needed);
    const Variant& variant = graph.ops[o].variants[choice];
    for (const ValueIndex value : variant.writes) needed[value] = 0;
    for (const ValueIndex value : variant.reads) needed[value] = 1;
    runs.push_back({static_cast<OpIndex>(o), choice});
  }
  std::reverse(runs.begin(), runs.end());
  return runs;
}

bool moves_values(const Plan& plan) {
  return std::any_of(plan.actions.begin(), plan.actions.end(), [](const Action& action) {
    switch (action.kind) {
      case ActionKind::kRun:
        return false;
      case ActionKind::kFree:
        return !action.at.empty();
      case ActionKind::kCopy:
      case ActionKind::kWait:
        return true;
    }
    return false;
  });
}

const char* to_string(ActionKind kind) {
  switch (kind) {
    case ActionKind::kRun:
      return "run";
    case ActionKind::kFree:
      return "free";
    case ActionKind::kCopy:
      return "copy";
    case ActionKind::kWait:
      return "wait";
  }
  return "?";
}

const char* to_string(Termination termination) {
  switch (termination) {
    case Termination::kOptimal:
      return "optimal";
    case Termination::kFeasible:
      return "feasible";
    case Termination::kInfeasible:
      return "infeasible";
    case Termination::kTimeLimit:
      return "time_limit";
  }
  return "?";
}

}  // namespace reprise
