#include "reprise/model/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "model/contains.h"
#include "model/place_map.h"
#include "model/touched.h"
#include "reprise/model/errors.h"

namespace reprise {

using internal::model::contains;

namespace {

// Next says what the actions after a point do first to a value in a memory. What a link reads is under
// way from the send to the wait.
enum class Next : char { kNothing, kRead, kWrite, kUnderWay };

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

}  // namespace

bool same_problem(const ProblemId& a, const ProblemId& b) {
  const bool other_hash = !a.sha256.empty() && !b.sha256.empty() && a.sha256 != b.sha256;
  return a.format == b.format && a.name == b.name && !other_hash;
}

// A value dies at the last action that touches it before it is written again, so that only the values
// that an action touches need a look.
std::vector<BoundAction> with_bound_frees(const Graph& graph, std::vector<BoundAction> actions) {
  std::vector<char> is_result(graph.values.size(), 0);
  for (const ValueIndex result : graph.results) is_result[result] = 1;
  internal::model::PlaceMap<Next> next(graph.values.size());
  std::vector<BoundAction> all;  // from the last one
  all.reserve(3 * actions.size());
  std::vector<ValueIndex> frees;
  for (size_t a = actions.size(); a-- > 0;) {
    const internal::model::Touched touched = internal::model::touched(graph, actions[a]);
    frees.clear();
    for (const auto& list : {touched.reads, touched.writes}) {
      for (const ValueIndex value : list) {
        const Next then = next.get(value, touched.memory);
        const bool stays = graph.values[value].kind == ValueKind::kInput || then == Next::kRead ||
                           then == Next::kUnderWay || (then == Next::kNothing && is_result[value]);
        const bool taken = touched.run != nullptr && takes(*touched.run, value);
        if (!stays && !taken) frees.push_back(value);
      }
    }
    std::sort(frees.begin(), frees.end());
    for (size_t f = frees.size(); f-- > 0;) {
      all.push_back({ActionKind::kFree, frees[f], 0, touched.memory});
    }
    for (const ValueIndex value : touched.writes) {
      Next& then = next.at(value, touched.memory);
      if (then != Next::kUnderWay || touched.run == nullptr) then = Next::kWrite;
    }
    for (const ValueIndex value : touched.reads) {
      Next& then = next.at(value, touched.memory);
      if (then != Next::kUnderWay || touched.run == nullptr) then = Next::kRead;
      if (actions[a].kind == ActionKind::kWait) then = Next::kUnderWay;
    }
    all.push_back(std::move(actions[a]));
  }
  std::reverse(all.begin(), all.end());
  return all;
}

std::vector<char> stays_on_device(const Graph& graph, const std::vector<Action>& actions) {
  std::vector<char> stays(graph.values.size(), 0);
  if (!has_homes(graph)) return stays;
  std::unordered_set<std::string_view> copied;
  std::unordered_map<std::string_view, std::unordered_set<std::string_view>> ran;  // variants by op
  for (const Action& action : actions) {
    if (action.kind == ActionKind::kRun) ran[action.id].insert(action.variant);
    if (has_two_ends(action.kind)) copied.insert(action.id);
  }
  const auto has_home = [&](ValueIndex value) { return !graph.values[value].home.empty(); };
  std::vector<std::pair<ValueIndex, ValueIndex>> together;  // in one memory, one after the other
  for (const Op& op : graph.ops) {
    const auto found = ran.find(op.id);
    for (const Variant& variant : op.variants) {
      for (const auto& pair : variant.reuses) {
        if (has_home(pair.first)) together.push_back(pair);
      }
      const bool runs = found != ran.end() && found->second.contains(variant.name);
      if (!runs || !variant.at.empty()) continue;
      for (const ValueIndex value : variant.reads) stays[value] = has_home(value);
      for (const ValueIndex value : variant.writes) stays[value] = has_home(value);
    }
  }
  for (size_t v = 0; v < graph.values.size(); ++v) {
    if (copied.contains(graph.values[v].id)) stays[v] = 0;
  }
  const auto agree = [&](const auto& pair) {
    if (stays[pair.first] == stays[pair.second]) return false;
    stays[pair.first] = stays[pair.second] = 0;
    return true;
  };
  while (std::ranges::count_if(together, agree) > 0) {
  }
  return stays;
}

std::optional<Graph> as_placed(const Graph& graph, const std::vector<Action>& actions) {
  const std::vector<char> stays = stays_on_device(graph, actions);
  if (std::ranges::count(stays, 1) == 0) return std::nullopt;
  return with_on_device(graph, stays);
}

std::vector<BoundAction> with_bound_frees(const Graph& graph, const std::vector<Run>& runs) {
  std::vector<char> live(graph.values.size(), 0);
  for (size_t v = 0; v < graph.values.size(); ++v) {
    live[v] = graph.values[v].kind == ValueKind::kInput;
  }
  std::vector<BoundAction> actions;
  actions.reserve(runs.size());
  for (size_t r = 0; r < runs.size(); ++r) {
    const Variant& variant = variant_of(graph, runs[r]);
    for (const ValueIndex value : variant.reads) {
      if (live[value]) continue;
      throw InternalError(fmt::format("run {} ({} {}) reads {}, which is not there", r,
                                      graph.ops[runs[r].op].id, variant.name,
                                      graph.values[value].id));
    }
    actions.push_back({ActionKind::kRun, runs[r].op, runs[r].variant});
    for (const ValueIndex value : variant.reads) live[value] = !takes(variant, value);
    for (const ValueIndex value : variant.writes) live[value] = 1;
  }
  return with_bound_frees(graph, std::move(actions));
}

std::vector<Action> with_frees(const Graph& graph, const std::vector<Run>& runs) {
  return with_names(graph, with_bound_frees(graph, runs), {});
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
      case ActionKind::kSend:
      case ActionKind::kReceive:
        return true;
    }
    return false;
  });
}

std::vector<Action> with_names(const Graph& graph, const std::vector<BoundAction>& actions,
                               const Machine& machine) {
  std::vector<Action> named;
  named.reserve(actions.size());
  const auto memory = [&](int32_t m) { return machine.memories[m].name; };
  for (const BoundAction& action : actions) {
    Action& one = named.emplace_back(Action{.kind = action.kind, .id = {}, .variant = {}});
    one.after = action.after;
    if (action.kind == ActionKind::kRun) {
      const Op& op = graph.ops[action.target];
      one.id = op.id;
      one.variant = op.variants[action.variant].name;
      continue;
    }
    one.id = graph.values[action.target].id;
    if (action.kind != ActionKind::kFree || action.at != 0) one.at = memory(action.at);
    if (has_two_ends(action.kind)) one.to = memory(action.to);
  }
  return named;
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
    case ActionKind::kSend:
      return "send";
    case ActionKind::kReceive:
      return "receive";
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
