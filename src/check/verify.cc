#include "reprise/check/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>

#include "check/accounting.h"
#include "check/claims.h"
#include "check/traffic.h"
#include "check/turns.h"
#include "model/id_index.h"
#include "reprise/check/simulate.h"
#include "reprise/model/errors.h"

namespace reprise {
namespace {

// The limit is there because a plan of some megabytes can break the rules billions of times.
constexpr size_t kMostViolations = 10'000;

// The Judge walks a plan and never stops at a fault: an action that cannot be understood does
// nothing, and a value that is not live stays so. It counts in Wide, so that no number in a valid
// graph can overflow.
class Judge {
 public:
  Judge(const Graph& graph, const Plan& plan, Bytes budget, const Machine& machine)
      : graph_(graph),
        plan_(plan),
        budget_(budget),
        machine_(machine),
        traffic_(graph, machine),
        report_([this](ViolationKind kind, const std::string& id, const std::string& message) {
          report(kind, id, message);
        }),
        turns_(graph, report_),
        live_(graph.values.size(), 0),
        elsewhere_(machine.memories.size()) {}

  std::vector<Violation> judge(const ProblemId* problem) {
    if (problem != nullptr) check_problem(*problem);
    start();
    const IdIndex index(graph_);
    for (action_ = 0; action_ < static_cast<int64_t>(plan_.actions.size()); ++action_) {
      bound_.push_back(resolve(index, plan_.actions[action_]));
      perform(bound_.back());
      if (violations_.size() >= kMostViolations) return std::move(violations_);
    }
    action_ = -1;
    check_end();
    check_claims(graph_, plan_, peak_, traffic_.now(), report_);
    check_accounts();
    return std::move(violations_);
  }

 private:
  void perform(std::optional<BoundAction>& action) {
    // A copy that cannot be understood does nothing, in both accounts.
    if (action && action->kind == ActionKind::kCopy && !can_copy(*action)) action.reset();
    if (!action) return record(level_, level_);
    switch (action->kind) {
      case ActionKind::kRun:
        return run(action->target, action->variant);
      case ActionKind::kFree:
        return action->at == 0 ? free(action->target) : free(action->target, action->at);
      case ActionKind::kCopy:
        return copy(*action);
      case ActionKind::kWait:
        return wait(action->target, action->at);
    }
  }

  void report(ViolationKind kind, const std::string& id, const std::string& message,
              Bytes over = Bytes(0)) {
    violations_.push_back({kind, action_, id, over, where() + message});
  }

  // Names the action that is judged now.
  std::string where() const {
    if (action_ < 0) return "plan: ";
    const Action& action = plan_.actions[action_];
    std::string names;
    for (const std::string* name : {&action.variant, &action.at, &action.to}) {
      if (!name->empty()) names += " " + *name;
    }
    return fmt::format("action {} ({} {}{}): ", action_, to_string(action.kind), action.id, names);
  }

  const std::string& value_id(ValueIndex value) const { return graph_.values[value].id; }
  Wide bytes(ValueIndex value) const { return graph_.values[value].bytes.count(); }

  void check_problem(const ProblemId& problem) {
    const auto differs = [&](const char* what, const std::string& mine, const std::string& theirs) {
      if (mine == theirs) return;
      report(ViolationKind::kOtherProblem, what,
             fmt::format("the plan is for another problem: its {} is \"{}\", not \"{}\"", what,
                         mine, theirs));
    };
    differs("format", plan_.problem.format, problem.format);
    differs("name", plan_.problem.name, problem.name);
    if (!plan_.problem.sha256.empty() && !problem.sha256.empty()) {
      differs("sha256", plan_.problem.sha256, problem.sha256);
    }
  }

  void start() {
    level_ = graph_.fixed.count();
    for (size_t v = 0; v < graph_.values.size(); ++v) {
      if (graph_.values[v].kind != ValueKind::kInput) continue;
      if (const int32_t home = home_of(static_cast<ValueIndex>(v)); home > 0) {
        elsewhere_[home].held.insert(static_cast<ValueIndex>(v));
        elsewhere_[home].level += graph_.values[v].bytes.count();
        continue;
      }
      live_[v] = 1;
      level_ += graph_.values[v].bytes.count();
    }
    for (size_t m = 1; m < elsewhere_.size(); ++m) {
      elsewhere_[m].initial = elsewhere_[m].level;
      check_capacity(static_cast<int32_t>(m), "");
    }
    levels_.initial = peak_ = level_;
    check_budget(level_, "at the start");
  }

  void check_budget(Wide needed, const char* when) {
    if (needed <= budget_.count()) return;
    const int64_t over = clamp(needed - budget_.count());
    report(ViolationKind::kOverBudget, action_ < 0 ? "" : plan_.actions[action_].id,
           fmt::format("needs {} bytes {}, {} over the budget of {}", clamp(needed), when, over,
                       budget_.count()),
           Bytes(over));
  }

  void record(Wide during, Wide after) {
    levels_.during.push_back(during);
    levels_.after.push_back(after);
    peak_ = std::max(peak_, during);
    check_budget(during, "while it runs");
    for (size_t m = 1; m < elsewhere_.size(); ++m) elsewhere_[m].record();
  }

  std::optional<BoundAction> resolve(const IdIndex& index, const Action& action) {
    const FoundAction found = index.find(action);
    if (found.target < 0) {
      report(ViolationKind::kUnknownId, action.id,
             fmt::format("the graph has no {} \"{}\"", found.what, action.id));
      return std::nullopt;
    }
    if (found.variant < 0) {
      turns_.run_unknown(found.target);  // The op was meant to run: it is not missing, too.
      report(ViolationKind::kUnknownId, action.id,
             fmt::format("\"{}\" has no variant \"{}\"", action.id, action.variant));
      return std::nullopt;
    }
    BoundAction bound{action.kind, found.target, found.variant};
    if (!resolve_memory(action.at, bound.at)) return std::nullopt;
    if (action.kind == ActionKind::kCopy && !resolve_copy(action, bound)) return std::nullopt;
    return bound;
  }

  bool resolve_memory(const std::string& name, int32_t& memory) {
    memory = find_memory(machine_, name);
    if (memory < 0) {
      report(ViolationKind::kUnknownId, name,
             fmt::format("the machine has no memory \"{}\"", name));
    }
    return memory >= 0;
  }

  bool resolve_copy(const Action& action, BoundAction& bound) {
    if (!resolve_memory(action.to, bound.to)) return false;
    bound.channel = find_channel(machine_, bound.at, bound.to);
    if (bound.channel < 0) {
      report(ViolationKind::kUnknownId, action.id,
             fmt::format("the machine has no channel from {} to {}", memory_name(bound.at),
                         memory_name(bound.to)));
    }
    bound.after = action.after;
    for (const int64_t earlier : action.after) {
      if (earlier >= 0 && earlier < action_ && plan_.actions[earlier].kind == ActionKind::kCopy) {
        continue;
      }
      report(ViolationKind::kOrder, action.id,
             fmt::format("comes after action {}, which is no earlier copy", earlier));
      return false;
    }
    return bound.channel >= 0;
  }

  const std::string& memory_name(int32_t memory) const { return machine_.memories[memory].name; }

  bool there(ValueIndex value, int32_t memory) const {
    return memory == 0 ? live_[value] != 0 : elsewhere_[memory].held.count(value) > 0;
  }

  // Says that a value is not where an action needs it.
  bool require_there(const char* what, ValueIndex value, int32_t memory) {
    if (there(value, memory)) return true;
    report(ViolationKind::kNotLive, value_id(value),
           memory == 0 ? fmt::format("{} {}, which is not live", what, value_id(value))
                       : fmt::format("{} {}, which is not live in {}", what, value_id(value),
                                     memory_name(memory)));
    return false;
  }

  // A value is given back only when every copy into the place and out of it has been waited for.
  void require_still(ValueIndex value, int32_t memory) {
    const bool leaving = traffic_.leaving(value, memory);
    if (!leaving && !traffic_.arriving(value, memory)) return;
    report(ViolationKind::kUnderWay, value_id(value),
           fmt::format("gives back {} in {}, and nobody has waited for the copy {} it",
                       value_id(value), memory_name(memory), leaving ? "out of" : "into"));
  }

  bool can_copy(const BoundAction& action) {
    if (!require_there("copies", action.target, action.at)) return false;
    if (!there(action.target, action.to)) return true;
    report(ViolationKind::kAlreadyThere, value_id(action.target),
           fmt::format("copies {} to {}, where it is already", value_id(action.target),
                       memory_name(action.to)));
    return false;
  }

  void copy(const BoundAction& action) {
    traffic_.copy(action_, action);
    if (action.to == 0) {
      live_[action.target] = 1;
      level_ += bytes(action.target);
      return record(level_, level_);
    }
    Elsewhere& memory = elsewhere_[action.to];
    memory.held.insert(action.target);
    memory.level += bytes(action.target);
    check_capacity(action.to, value_id(action.target));
    record(level_, level_);
  }

  void check_capacity(int32_t memory, const std::string& id) {
    const std::optional<Bytes>& capacity = machine_.memories[memory].capacity;
    const Wide level = elsewhere_[memory].level;
    if (!capacity || level <= capacity->count()) return;
    const int64_t over = clamp(level - capacity->count());
    report(ViolationKind::kOverBudget, id,
           fmt::format("needs {} bytes in {}, {} over its capacity of {}", clamp(level),
                       memory_name(memory), over, capacity->count()),
           Bytes(over));
  }

  // The position of the memory where the value lives between steps; 0 for the device.
  int32_t home_of(ValueIndex value) const {
    return find_memory(machine_, graph_.values[value].home);
  }

  void wait(ValueIndex value, int32_t memory) {
    if (require_there("waits for", value, memory)) traffic_.wait(value, memory);
    record(level_, level_);
  }

  // Says that a free gives back an input where it lives.
  bool frees_input(ValueIndex value, int32_t memory) {
    if (graph_.values[value].kind != ValueKind::kInput || home_of(value) != memory) return false;
    report(ViolationKind::kInputFreed, value_id(value),
           fmt::format("{} is an input: the caller's", value_id(value)));
    return true;
  }

  void free(ValueIndex value, int32_t memory) {
    if (!frees_input(value, memory) && require_there("frees", value, memory)) {
      require_still(value, memory);
      traffic_.forget(value, memory);
      elsewhere_[memory].held.erase(value);
      elsewhere_[memory].level -= bytes(value);
    }
    record(level_, level_);
  }

  void run(OpIndex op, int32_t index) {
    const Variant& variant = graph_.ops[op].variants[index];
    turns_.run(op, variant);
    traffic_.run(variant.time);
    for (const ValueIndex value : variant.reads) {
      if (live_[value] && traffic_.arriving(value, 0)) {
        report(ViolationKind::kUnderWay, value_id(value),
               fmt::format("reads {}, and nobody has waited for its copy", value_id(value)));
      }
      if (live_[value]) continue;
      report(ViolationKind::kNotLive, value_id(value),
             fmt::format("reads {}, which is not live", value_id(value)));
    }
    Wide during = level_ + variant.workspace.count();
    for (const ValueIndex value : variant.consumes) during -= give_back(value);
    for (const auto& pair : variant.reuses) during -= give_back(pair.second);
    for (const ValueIndex value : variant.writes) {
      during += bytes(value);
      if (live_[value]) continue;
      live_[value] = 1;
      level_ += bytes(value);
    }
    record(during, level_);
  }

  // Ends the life of the value and returns the bytes that were live.
  Wide give_back(ValueIndex value) {
    if (!live_[value]) return 0;
    require_still(value, 0);
    traffic_.forget(value, 0);
    live_[value] = 0;
    level_ -= bytes(value);
    return bytes(value);
  }

  void free(ValueIndex value) {
    const Wide before = level_;
    if (!frees_input(value, 0)) {
      if (live_[value]) {
        give_back(value);
      } else {
        report(ViolationKind::kNotLive, value_id(value),
               fmt::format("frees {}, which is not live", value_id(value)));
      }
    }
    record(before, level_);
  }

  void check_end() {
    turns_.end();
    std::vector<char> is_result(graph_.values.size(), 0);
    for (const ValueIndex value : graph_.results) {
      is_result[value] = 1;
      const int32_t home = home_of(value);
      if (there(value, home) && !traffic_.arriving(value, home)) continue;
      report(ViolationKind::kMissingResult, value_id(value),
             home == 0 ? fmt::format("the result {} is not live at the end", value_id(value))
                       : fmt::format("the result {} is not in {} at the end", value_id(value),
                                     memory_name(home)));
    }
    const auto stays = [&](ValueIndex value, int32_t memory) {
      return (is_result[value] || graph_.values[value].kind == ValueKind::kInput) &&
             home_of(value) == memory;
    };
    for (size_t v = 0; v < graph_.values.size(); ++v) {
      const Value& value = graph_.values[v];
      if (!live_[v] || stays(static_cast<ValueIndex>(v), 0)) continue;
      report(ViolationKind::kLeftOver, value.id,
             fmt::format("{} ({} bytes) is still live at the end", value.id, value.bytes.count()));
    }
    for (size_t m = 1; m < elsewhere_.size(); ++m) {
      for (const ValueIndex value : elsewhere_[m].held) {
        if (stays(value, static_cast<int32_t>(m))) continue;
        report(ViolationKind::kLeftOver, value_id(value),
               fmt::format("{} ({} bytes) is still in {} at the end", value_id(value),
                           clamp(bytes(value)), machine_.memories[m].name));
      }
    }
  }

  void check_accounts() const {
    check_account(interval_levels(graph_, bound_, machine_, 0), levels_);
    for (size_t m = 1; m < elsewhere_.size(); ++m) {
      const Levels sums = interval_levels(graph_, bound_, machine_, static_cast<int32_t>(m));
      // While a value is copied or freed it counts, as it does after a copy and before a free.
      check_account({.initial = sums.initial, .during = {}, .after = sums.after},
                    {.initial = elsewhere_[m].initial, .during = {}, .after = elsewhere_[m].after});
    }
  }

  void check_account(const Levels& sums, const Levels& walked) const {
    if (sums.initial == walked.initial && sums.during == walked.during &&
        sums.after == walked.after) {
      return;
    }
    size_t a = 0;
    const auto same = [&](const std::vector<Wide>& x, const std::vector<Wide>& y) {
      return a >= x.size() || x[a] == y[a];
    };
    while (a < bound_.size() && same(sums.during, walked.during) &&
           same(sums.after, walked.after)) {
      ++a;
    }
    throw InternalError(
        fmt::format("the two memory accounts of the verifier differ at action {}; please report "
                    "the plan and its problem",
                    a));
  }

  // The account of a memory behind the device.
  struct Elsewhere {
    std::set<ValueIndex> held;
    Wide level = 0, initial = 0;
    std::vector<Wide> after;  // by action

    void record() { after.push_back(level); }
  };

  const Graph& graph_;
  const Plan& plan_;
  const Bytes budget_;
  const Machine& machine_;
  Traffic traffic_;
  ReportViolation report_;
  Turns turns_;
  std::vector<Violation> violations_;
  std::vector<std::optional<BoundAction>> bound_;  // empty for an action with an unknown id

  int64_t action_ = -1;
  std::vector<char> live_;
  Wide level_ = 0, peak_ = 0;
  Levels levels_;
  std::vector<Elsewhere> elsewhere_;  // by memory; the first is not used
};

}  // namespace

std::vector<Violation> verify(const Graph& graph, const Plan& plan, Bytes budget,
                              const Machine& machine) {
  validate(graph);
  validate(machine);
  require_homes(graph, machine);
  return Judge(graph, plan, budget, machine).judge(nullptr);
}

std::vector<Violation> verify(const Graph& graph, const Plan& plan, Bytes budget,
                              const ProblemId& problem, const Machine& machine) {
  validate(graph);
  validate(machine);
  require_homes(graph, machine);
  return Judge(graph, plan, budget, machine).judge(&problem);
}

}  // namespace reprise
