#include "reprise/check/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "check/accounting.h"
#include "model/id_index.h"
#include "reprise/check/simulate.h"
#include "reprise/model/errors.h"

namespace reprise {
namespace {

// The limit is there because a plan of some megabytes can break the rules billions of times.
constexpr size_t kMostViolations = 10'000;

constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();

// Messages and Violation::over use this; all comparisons are made on the whole number.
int64_t clamp(Wide number) { return number > kLargest ? kLargest : static_cast<int64_t>(number); }

bool runs_once(const Op& op) { return op.once || op.phase != Phase::kForward; }

// The Judge walks a plan and never stops at a fault: an action that cannot be understood does
// nothing, and a value that is not live stays so. It counts in Wide, so that no number in a valid
// graph can overflow.
class Judge {
 public:
  Judge(const Graph& graph, const Plan& plan, Bytes budget)
      : graph_(graph),
        plan_(plan),
        budget_(budget),
        live_(graph.values.size(), 0),
        runs_(graph.ops.size(), 0),
        choice_of_(graph.ops.size(), -1),
        realization_of_(graph.ops.size(), -1),
        chosen_(graph.choices.size(), -1) {}

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
    check_claims();
    check_accounts();
    return std::move(violations_);
  }

 private:
  void perform(const std::optional<BoundAction>& action) {
    if (!action) return record(level_, level_);
    switch (action->kind) {
      case ActionKind::kRun:
        return run(action->target, action->variant);
      case ActionKind::kFree:
        return free(action->target);
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
    return fmt::format("action {} ({} {}{}{}): ", action_, to_string(action.kind), action.id,
                       action.variant.empty() ? "" : " ", action.variant);
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
      live_[v] = 1;
      level_ += graph_.values[v].bytes.count();
    }
    levels_.initial = peak_ = level_;
    check_budget(level_, "at the start");
    for (size_t c = 0; c < graph_.choices.size(); ++c) {
      const auto& realizations = graph_.choices[c].realizations;
      for (size_t r = 0; r < realizations.size(); ++r) {
        for (const OpIndex op : realizations[r].ops) {
          choice_of_[op] = static_cast<int32_t>(c);
          realization_of_[op] = static_cast<int32_t>(r);
        }
      }
    }
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
  }

  std::optional<BoundAction> resolve(const IdIndex& index, const Action& action) {
    const FoundAction found = index.find(action);
    if (found.target < 0) {
      report(ViolationKind::kUnknownId, action.id,
             fmt::format("the graph has no {} \"{}\"", found.what, action.id));
      return std::nullopt;
    }
    if (found.variant < 0) {
      ++runs_[found.target];  // The op was meant to run: it is not missing, too.
      report(ViolationKind::kUnknownId, action.id,
             fmt::format("\"{}\" has no variant \"{}\"", action.id, action.variant));
      return std::nullopt;
    }
    return BoundAction{action.kind, found.target, found.variant};
  }

  void run(OpIndex op, int32_t index) {
    const Variant& variant = graph_.ops[op].variants[index];
    check_turn(op, variant);
    ++runs_[op];
    time_ += variant.time.count();
    for (const ValueIndex value : variant.reads) {
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
    live_[value] = 0;
    level_ -= bytes(value);
    return bytes(value);
  }

  void free(ValueIndex value) {
    const Wide before = level_;
    if (graph_.values[value].kind == ValueKind::kInput) {
      report(ViolationKind::kInputFreed, value_id(value),
             fmt::format("{} is an input: the caller's", value_id(value)));
    } else if (!live_[value]) {
      report(ViolationKind::kNotLive, value_id(value),
             fmt::format("frees {}, which is not live", value_id(value)));
    } else {
      give_back(value);
    }
    record(before, level_);
  }

  // Checks whether this variant of this op may run now.
  void check_turn(OpIndex index, const Variant& variant) {
    const Op& op = graph_.ops[index];
    const bool first = runs_[index] == 0;
    if (variant.role == (first ? Role::kReplay : Role::kFirst)) {
      report(ViolationKind::kRole, op.id,
             fmt::format("variant {} is for {}, but this is {}", variant.name,
                         first ? "re-runs" : "first runs", first ? "the first run" : "a re-run"));
    }
    if (op.random && first) {
      if (index < last_random_) {
        report(ViolationKind::kOrder, op.id,
               fmt::format("draws random numbers before {} in the graph, but after it here",
                           graph_.ops[last_random_].id));
      }
      last_random_ = std::max(last_random_, index);
    }
    if (runs_once(op)) {
      if (!first) {
        report(ViolationKind::kRepeatedRun, op.id, fmt::format("{} runs once only", op.id));
      } else if (index < last_once_) {
        report(ViolationKind::kOrder, op.id,
               fmt::format("comes before {} in the graph, but runs after it",
                           graph_.ops[last_once_].id));
      }
      last_once_ = std::max(last_once_, index);
    }
    const int32_t choice = choice_of_[index];
    if (choice < 0) return;
    if (chosen_[choice] < 0) chosen_[choice] = realization_of_[index];
    if (chosen_[choice] != realization_of_[index]) {
      report(ViolationKind::kChoice, op.id,
             fmt::format("is of realization {} of choice {}, but realization {} has begun",
                         realization_of_[index], graph_.choices[choice].id, chosen_[choice]));
    }
  }

  void check_end() {
    for (size_t o = 0; o < graph_.ops.size(); ++o) {
      const int32_t choice = choice_of_[o];
      if (choice >= 0 && chosen_[choice] != realization_of_[o]) continue;
      if (runs_[o] > 0) continue;
      report(ViolationKind::kMissingRun, graph_.ops[o].id,
             fmt::format("{} never runs", graph_.ops[o].id));
    }
    for (size_t c = 0; c < graph_.choices.size(); ++c) {
      if (chosen_[c] >= 0) continue;
      report(ViolationKind::kChoice, graph_.choices[c].id,
             fmt::format("no realization of choice {} runs", graph_.choices[c].id));
    }
    std::vector<char> is_result(graph_.values.size(), 0);
    for (const ValueIndex value : graph_.results) {
      is_result[value] = 1;
      if (live_[value]) continue;
      report(ViolationKind::kMissingResult, value_id(value),
             fmt::format("the result {} is not live at the end", value_id(value)));
    }
    for (size_t v = 0; v < graph_.values.size(); ++v) {
      const Value& value = graph_.values[v];
      if (!live_[v] || is_result[v] || value.kind == ValueKind::kInput) continue;
      report(ViolationKind::kLeftOver, value.id,
             fmt::format("{} ({} bytes) is still live at the end", value.id, value.bytes.count()));
    }
  }

  void claim(bool holds, const char* what, const std::string& message) {
    if (!holds) report(ViolationKind::kFalseClaim, what, message);
  }

  void check_claims() {
    claim(plan_.peak.count() == peak_, "peak_bytes",
          fmt::format("claims a peak of {} bytes; it is {}", plan_.peak.count(), clamp(peak_)));
    claim(plan_.time.count() == time_, "time_ns",
          fmt::format("claims a time of {} ns; it is {}", plan_.time.count(), clamp(time_)));
    claim(plan_.budget.count() >= peak_, "budget_bytes",
          fmt::format("claims to fit {} bytes; its peak is {}, {} over", plan_.budget.count(),
                      clamp(peak_), clamp(peak_ - plan_.budget.count())));
    claim(plan_.lower_bound.count() <= time_, "lower_bound_ns",
          fmt::format("claims that no plan is faster than {} ns; it takes {} itself",
                      plan_.lower_bound.count(), clamp(time_)));
    const bool no_plan = plan_.termination == Termination::kInfeasible ||
                         plan_.termination == Termination::kTimeLimit;
    claim(!no_plan || plan_.actions.empty(), "termination",
          fmt::format("claims {}, which has no plan, and has one", to_string(plan_.termination)));
    claim(plan_.termination != Termination::kOptimal || plan_.lower_bound.count() == time_,
          "termination",
          fmt::format("claims to be optimal with a lower bound of {} ns and a time of {} ns",
                      plan_.lower_bound.count(), clamp(time_)));
    check_baseline();
  }

  void check_baseline() {
    try {
      const Baseline plain = baseline(graph_);
      claim(plan_.baseline == plain, "baseline",
            fmt::format("claims that plain training needs {} bytes and {} ns; it needs {} and {}",
                        plan_.baseline.peak.count(), plan_.baseline.time.count(),
                        plain.peak.count(), plain.time.count()));
    } catch (const InputError& error) {
      claim(false, "baseline", fmt::format("no baseline to compare with: {}", error.what()));
    }
  }

  void check_accounts() const {
    const Levels sums = interval_levels(graph_, bound_);
    if (sums.initial == levels_.initial && sums.during == levels_.during &&
        sums.after == levels_.after) {
      return;
    }
    size_t a = 0;
    while (a < bound_.size() && sums.during[a] == levels_.during[a] &&
           sums.after[a] == levels_.after[a]) {
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
  std::vector<Violation> violations_;
  std::vector<std::optional<BoundAction>> bound_;  // empty for an action with an unknown id

  int64_t action_ = -1;
  std::vector<char> live_;
  Wide level_ = 0, peak_ = 0, time_ = 0;
  Levels levels_;
  std::vector<int64_t> runs_;  // by op
  OpIndex last_once_ = -1;     // the last op in graph order that runs once and has run
  OpIndex last_random_ = -1;   // the last op in graph order that draws random numbers and has run
  std::vector<int32_t> choice_of_, realization_of_;  // by op; -1 for an op in no choice
  std::vector<int32_t> chosen_;                      // by choice; -1 before any of its ops has run
};

}  // namespace

std::vector<Violation> verify(const Graph& graph, const Plan& plan, Bytes budget) {
  validate(graph);
  return Judge(graph, plan, budget).judge(nullptr);
}

std::vector<Violation> verify(const Graph& graph, const Plan& plan, Bytes budget,
                              const ProblemId& problem) {
  validate(graph);
  return Judge(graph, plan, budget).judge(&problem);
}

const char* to_string(ViolationKind kind) {
  switch (kind) {
    case ViolationKind::kUnknownId:
      return "unknown id";
    case ViolationKind::kNotLive:
      return "not live";
    case ViolationKind::kInputFreed:
      return "input freed";
    case ViolationKind::kMissingRun:
      return "missing run";
    case ViolationKind::kRepeatedRun:
      return "repeated run";
    case ViolationKind::kOrder:
      return "order";
    case ViolationKind::kRole:
      return "role";
    case ViolationKind::kChoice:
      return "choice";
    case ViolationKind::kMissingResult:
      return "missing result";
    case ViolationKind::kLeftOver:
      return "left over";
    case ViolationKind::kOverBudget:
      return "over budget";
    case ViolationKind::kFalseClaim:
      return "false claim";
    case ViolationKind::kOtherProblem:
      return "other problem";
  }
  return "?";
}

}  // namespace reprise
