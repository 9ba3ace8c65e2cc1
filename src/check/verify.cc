#include "reprise/check/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "check/accounting.h"
#include "check/claims.h"
#include "check/traffic.h"
#include "check/turns.h"
#include "model/id_index.h"
#include "model/place_map.h"
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
        live_(graph.values.size()),
        accounts_(machine.memories.size()) {}

  std::vector<Violation> judge(const ProblemId* problem) {
    if (problem != nullptr) check_problem(*problem);
    start();
    walk();
    if (violations_.size() >= kMostViolations) return std::move(violations_);
    action_ = -1;
    check_end();
    check_claims(graph_, plan_, peak_, traffic_.now(), report_);
    check_accounts();
    return std::move(violations_);
  }

 private:
  void perform(std::optional<BoundAction>& action) {
    // A copy that cannot be understood does nothing, in both accounts.
    if (action && has_two_ends(action->kind) && !can_copy(*action)) action.reset();
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
      case ActionKind::kSend:
      case ActionKind::kReceive:
        return message(*action);
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
    Wide level = 0;
    Levels levels;
  };

  void start() {
    accounts_[0].level = graph_.fixed.count();
    for (size_t v = 0; v < graph_.values.size(); ++v) {
      if (graph_.values[v].kind != ValueKind::kInput) continue;
      hold(static_cast<ValueIndex>(v), home_of(static_cast<ValueIndex>(v)));
    }
    for (size_t m = 0; m < accounts_.size(); ++m) {
      accounts_[m].levels.push_back(accounts_[m].level);
      check_room(accounts_[m].level, static_cast<int32_t>(m), "at the start");
    }
    peak_ = accounts_[0].level;
  }

  void walk() {
    bound_.reserve(plan_.actions.size());
    accounts_[0].levels.reserve(1 + 2 * plan_.actions.size());
    IdIndex index(graph_);
    for (action_ = 0; action_ < static_cast<int64_t>(plan_.actions.size()); ++action_) {
      bound_.push_back(resolve(index, plan_.actions[action_]));
      perform(bound_.back());
      if (violations_.size() >= kMostViolations) return;
    }
  }

  // The first memory has the budget, and the others have their capacities.
  void check_room(Wide needed, int32_t memory, const char* when) {
    const std::optional<Bytes> room = memory == 0 ? budget_ : machine_.memories[memory].capacity;
    if (!room || needed <= room->count()) return;
    const int64_t over = clamp(needed - room->count());
    const std::string id = memory == 0 ? std::string() : memory_name(memory);
    report(ViolationKind::kOverBudget, action_ < 0 ? id : plan_.actions[action_].id,
           fmt::format("needs {} bytes{} {}, {} over the {} of {}", clamp(needed), where(memory),
                       when, over, memory == 0 ? "budget" : "capacity", room->count()),
           Bytes(over));
  }

  // Ends an action of a memory, which holds `during` while the action goes on. In a memory behind
  // the devices, only what adds bytes is over the capacity.
  void record(Wide during, int32_t memory, bool adds = false) {
    Account& account = accounts_[memory];
    account.levels.insert(account.levels.end(), {during, account.level});
    if (memory == 0) peak_ = std::max(peak_, during);
    if (adds || computes(machine_, memory)) check_room(during, memory, "while it runs");
  }
  void record(int32_t memory = 0) { record(accounts_[memory].level, memory); }

  std::optional<BoundAction> resolve(IdIndex& index, const Action& action) {
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
    if (has_two_ends(action.kind) && !resolve_copy(action, bound)) return std::nullopt;
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

  bool there(ValueIndex value, int32_t memory) const { return live_.get(value, memory) != 0; }
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
    const char* const what = action.kind == ActionKind::kCopy   ? "copies"
                             : action.kind == ActionKind::kSend ? "sends"
                                                                : "receives";
    const ValueIndex value = action.target;
    if (action.kind != ActionKind::kReceive) {
      if (!require_there(what, value, action.at)) return false;
      if (traffic_.open(value, action.at) ||
          (action.kind == ActionKind::kCopy && traffic_.blocked(action.channel))) {
        report(ViolationKind::kUnmatched, value_id(value),
               fmt::format("{} {} behind a message that cannot start yet", what, value_id(value)));
        return false;
      }
    }
    if (action.kind == ActionKind::kSend || !there(value, action.to)) return true;
    report(ViolationKind::kAlreadyThere, value_id(value),
           fmt::format("{} {} to {}, where it is already", what, value_id(value),
                       memory_name(action.to)));
    return false;
  }

  void copy(const BoundAction& action) {
    traffic_.copy(action_, action);
    hold(action.target, action.to);
    record(accounts_[action.to].level, action.to, true);
  }

  void message(const BoundAction& action) {
    if (!traffic_.message(action_, action)) {
      report(ViolationKind::kUnmatched, value_id(action.target),
             fmt::format("is another {} of {} to {}", to_string(action.kind),
                         value_id(action.target), memory_name(action.to)));
    }
    const bool receives = action.kind == ActionKind::kReceive;
    if (receives) hold(action.target, action.to);
    const int32_t memory = receives ? action.to : action.at;
    record(accounts_[memory].level, memory, receives);
  }

  // Returns the position of the memory where the value lives between steps, or 0 for the device.
  int32_t home_of(ValueIndex value) const {
    return find_memory(machine_, graph_.values[value].home);
  }

  void wait(ValueIndex value, int32_t memory) {
    if (require_there("waits for", value, memory) && !traffic_.wait(value, memory)) {
      report(ViolationKind::kUnmatched, value_id(value),
             fmt::format("waits for the message {}, which cannot start yet", value_id(value)));
    }
    record(memory);
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
    record(during, memory);
  }

  void hold(ValueIndex value, int32_t memory) {
    live_.at(value, memory) = 1;
    accounts_[memory].level += bytes(value);
  }

  // Ends the life of the value and returns the bytes that were live.
  Wide give_back(ValueIndex value, int32_t memory) {
    if (!there(value, memory)) return 0;
    require_still(value, memory);
    traffic_.forget(value, memory);
    live_.at(value, memory) = 0;
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
    for (const int64_t half : traffic_.halves()) {
      const Action& action = plan_.actions[half];
      report(ViolationKind::kUnmatched, action.id,
             fmt::format("{} is a message from {} to {} with a {} alone", action.id, action.at,
                         action.to, to_string(action.kind)));
    }
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
    std::vector<std::pair<int32_t, ValueIndex>> left;
    live_.for_each([&](ValueIndex value, int32_t memory, char live) {
      if (live && !stays(value, memory)) left.emplace_back(memory, value);
    });
    std::sort(left.begin(), left.end());
    for (const auto& [memory, v] : left) {
      const Value& value = graph_.values[v];
      report(ViolationKind::kLeftOver, value.id,
             fmt::format("{} ({} bytes) is still {} at the end", value.id, value.bytes.count(),
                         memory == 0 ? "live" : "in " + memory_name(memory)));
    }
  }

  void check_accounts() const {
    const std::vector<Levels> sums = interval_levels(graph_, bound_, machine_);
    for (size_t m = 0; m < accounts_.size(); ++m) {
      if (sums[m] == accounts_[m].levels) continue;
      throw InternalError(
          fmt::format("the two accounts of the verifier differ for {}; please report the plan and "
                      "its problem",
                      memory_name(static_cast<int32_t>(m))));
    }
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
  Wide peak_ = 0;  // of the first memory
  internal::model::PlaceMap<char> live_;
  std::vector<Account> accounts_;  // by memory
};

}  // namespace

namespace {

std::vector<Violation> judge(const Graph& graph, const Plan& plan, Bytes budget,
                             const ProblemId* problem, const Machine& machine) {
  validate(graph);
  validate(machine);
  require_homes(graph, machine);
  const std::optional<Graph> placed = as_placed(graph, plan.actions);
  return Judge(placed ? *placed : graph, plan, budget, machine).judge(problem);
}

}  // namespace

std::vector<Violation> verify(const Graph& graph, const Plan& plan, Bytes budget,
                              const Machine& machine) {
  return judge(graph, plan, budget, nullptr, machine);
}

std::vector<Violation> verify(const Graph& graph, const Plan& plan, Bytes budget,
                              const ProblemId& problem, const Machine& machine) {
  return judge(graph, plan, budget, &problem, machine);
}

}  // namespace reprise
