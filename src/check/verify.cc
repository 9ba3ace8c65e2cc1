#include "reprise/check/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

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
        accounts_(machine.memories.size(), Account(graph.values.size())) {}

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
    if (!action) return record();
    switch (action->kind) {
      case ActionKind::kRun:
        return run(action->target, action->variant, action->at);
      case ActionKind::kFree:
        return free(action->target, action->at);
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

  // An Account says what a memory holds.
  struct Account {
    explicit Account(size_t values) : live(values, 0) {}

    std::vector<char> live;  // by value
    Wide level = 0;
    Levels levels;
  };

  void start() {
    Account& first = accounts_[0];
    first.level = graph_.fixed.count();
    for (size_t v = 0; v < graph_.values.size(); ++v) {
      if (graph_.values[v].kind != ValueKind::kInput) continue;
      hold(static_cast<ValueIndex>(v), home_of(static_cast<ValueIndex>(v)));
    }
    for (size_t m = 0; m < accounts_.size(); ++m) {
      accounts_[m].levels.initial = accounts_[m].level;
      check_capacity(accounts_[m].level, static_cast<int32_t>(m), "");
    }
    peak_ = first.level;
    check_budget(first.level, "at the start");
  }

  void check_budget(Wide needed, const char* when) {
    if (needed <= budget_.count()) return;
    const int64_t over = clamp(needed - budget_.count());
    report(ViolationKind::kOverBudget, action_ < 0 ? "" : plan_.actions[action_].id,
           fmt::format("needs {} bytes {}, {} over the budget of {}", clamp(needed), when, over,
                       budget_.count()),
           Bytes(over));
  }

  // A memory beyond the first has a capacity, which the actions there that add bytes must respect.
  void check_capacity(Wide needed, int32_t memory, const std::string& id) {
    const std::optional<Bytes>& capacity = machine_.memories[memory].capacity;
    if (memory == 0 || !capacity || needed <= capacity->count()) return;
    const int64_t over = clamp(needed - capacity->count());
    report(ViolationKind::kOverBudget, id,
           fmt::format("needs {} bytes in {}, {} over its capacity of {}", clamp(needed),
                       memory_name(memory), over, capacity->count()),
           Bytes(over));
  }

  // Ends an action. `during` is what `memory` holds while the action goes on, and all else stays.
  void record(Wide during, int32_t memory) {
    for (size_t m = 0; m < accounts_.size(); ++m) {
      Account& account = accounts_[m];
      account.levels.during.push_back(static_cast<int32_t>(m) == memory ? during : account.level);
      account.levels.after.push_back(account.level);
    }
    const Wide in_first = accounts_[0].levels.during.back();
    peak_ = std::max(peak_, in_first);
    check_budget(in_first, "while it runs");
  }
  void record() { record(accounts_[0].level, 0); }

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
    if (action.kind == ActionKind::kRun) {
      if (!resolve_device(action, bound)) return std::nullopt;
      return bound;
    }
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

  bool resolve_device(const Action& action, BoundAction& bound) {
    const std::string& name = graph_.ops[bound.target].variants[bound.variant].at;
    if (name.empty()) return true;
    bound.at = find_memory(machine_, name);
    if (bound.at >= 0 && computes(machine_, bound.at)) return true;
    turns_.run_unknown(bound.target);
    report(
        ViolationKind::kUnknownId, action.id,
        fmt::format("{} runs on \"{}\", and the machine has no such device", action.variant, name));
    return false;
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

  bool there(ValueIndex value, int32_t memory) const { return accounts_[memory].live[value] != 0; }
  std::string where(int32_t memory) const {
    return memory == 0 ? std::string() : " in " + memory_name(memory);
  }

  // Says that a value is not where an action needs it.
  bool require_there(const char* what, ValueIndex value, int32_t memory) {
    if (there(value, memory)) return true;
    report(ViolationKind::kNotLive, value_id(value),
           fmt::format("{} {}, which is not live{}", what, value_id(value), where(memory)));
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
    hold(action.target, action.to);
    check_capacity(accounts_[action.to].level, action.to, value_id(action.target));
    record();
  }

  // Returns the position of the memory where the value lives between steps, or 0 for the device.
  int32_t home_of(ValueIndex value) const {
    return find_memory(machine_, graph_.values[value].home);
  }

  void wait(ValueIndex value, int32_t memory) {
    if (require_there("waits for", value, memory)) traffic_.wait(value, memory);
    record();
  }

  void run(OpIndex op, int32_t index, int32_t memory) {
    const Variant& variant = graph_.ops[op].variants[index];
    turns_.run(op, variant);
    for (const ValueIndex value : variant.reads) {
      if (there(value, memory) && traffic_.arriving(value, memory)) {
        report(ViolationKind::kUnderWay, value_id(value),
               fmt::format("reads {}, and nobody has waited for its copy", value_id(value)));
      }
      require_there("reads", value, memory);
    }
    Wide during = accounts_[memory].level + variant.workspace.count();
    for (const ValueIndex value : variant.consumes) during -= give_back(value, memory);
    for (const auto& pair : variant.reuses) during -= give_back(pair.second, memory);
    for (const ValueIndex value : variant.writes) {
      during += bytes(value);
      if (!there(value, memory)) hold(value, memory);
    }
    traffic_.run(variant.time, memory);
    check_capacity(during, memory, graph_.ops[op].id);
    record(during, memory);
  }

  void hold(ValueIndex value, int32_t memory) {
    accounts_[memory].live[value] = 1;
    accounts_[memory].level += bytes(value);
  }

  // Ends the life of the value and returns the bytes that were live.
  Wide give_back(ValueIndex value, int32_t memory) {
    if (!there(value, memory)) return 0;
    require_still(value, memory);
    traffic_.forget(value, memory);
    accounts_[memory].live[value] = 0;
    accounts_[memory].level -= bytes(value);
    return bytes(value);
  }

  void free(ValueIndex value, int32_t memory) {
    const Wide before = accounts_[memory].level;
    if (graph_.values[value].kind == ValueKind::kInput && home_of(value) == memory) {
      report(ViolationKind::kInputFreed, value_id(value),
             fmt::format("{} is an input: the caller's", value_id(value)));
    } else if (require_there("frees", value, memory)) {
      give_back(value, memory);
    }
    record(before, memory);
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
    for (size_t m = 0; m < accounts_.size(); ++m) {
      const auto memory = static_cast<int32_t>(m);
      for (size_t v = 0; v < graph_.values.size(); ++v) {
        if (!accounts_[m].live[v] || stays(static_cast<ValueIndex>(v), memory)) continue;
        const Value& value = graph_.values[v];
        report(ViolationKind::kLeftOver, value.id,
               fmt::format("{} ({} bytes) is still {} at the end", value.id, value.bytes.count(),
                           memory == 0 ? "live" : "in " + memory_name(memory)));
      }
    }
  }

  void check_accounts() const {
    for (size_t m = 0; m < accounts_.size(); ++m) {
      check_account(interval_levels(graph_, bound_, machine_, static_cast<int32_t>(m)),
                    accounts_[m].levels);
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
  Wide peak_ = 0;                  // of the first memory
  std::vector<Account> accounts_;  // by memory
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
