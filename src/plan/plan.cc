// plan() goes from a question to a verified answer. This file has the work that all planners share.
#include "reprise/plan/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "plan/common/admissible.h"
#include "plan/common/candidates.h"
#include "plan/place/homes.h"
#include "plan/single_budgets.h"
#include "reprise/check/simulate.h"
#include "reprise/check/verify.h"
#include "reprise/io/json.h"
#include "reprise/model/errors.h"
#include "reprise/model/lower.h"
#include "reprise/plan/registry.h"

namespace reprise {

using internal::common::restrict_exactness;

namespace {

using Clock = std::chrono::steady_clock;

// A number of slots for a planner that has none is a mistake of the caller.
void check_slots(const PlannerInfo& planner, int slots) {
  if (slots == 0 || planner.slots) return;
  std::string others;
  for (const PlannerInfo& other : planners()) {
    if (other.slots) others += (others.empty() ? "" : ", ") + std::string(other.name);
  }
  throw InputError(std::string("planner '") + planner.name +
                   "' has no slots to choose the number of; these have: " + others);
}

// `kind` names the kind of problem in the message; `function` is the member that plans such a
// problem.
template <class Function>
const PlannerInfo& chosen_planner(const PlanOptions& options, const char* preferred,
                                  const char* kind, Function PlannerInfo::*function) {
  const PlannerInfo& planner = find_planner(options.planner.empty() ? preferred : options.planner);
  if (planner.*function != nullptr) {
    check_slots(planner, options.slots);
    return planner;
  }
  std::string others;
  for (const PlannerInfo& other : planners()) {
    if (other.*function != nullptr)
      others += (others.empty() ? "" : ", ") + std::string(other.name);
  }
  throw InputError(std::string("planner '") + planner.name + "' does not plan " + kind +
                   "; these do: " + others);
}

void check_options(const PlanOptions& options) {
  validate(options.machine);
  if (options.time_limit < Nanos()) throw InputError("the time limit is negative");
  if (options.threads < 0) throw InputError("the number of threads is negative");
  if (options.slots < 0) throw InputError("the number of slots is negative");
  if (options.reserve < Bytes()) throw InputError("the reserve is negative");
}

// A machine that a planner would ignore is a mistake of the caller.
void check_machine(const PlannerInfo& planner, const Machine& machine) {
  if (machine.channels.empty() || planner.moves) return;
  std::string movers;
  for (const PlannerInfo& other : planners()) {
    if (other.moves) movers += (movers.empty() ? "" : ", ") + std::string(other.name);
  }
  throw InputError(std::string("planner '") + planner.name +
                   "' does not move values to other memories; leave the machine out, or plan a "
                   "chain with one of these: " +
                   movers);
}

Bytes resolve_budget(const PlanOptions& options, const Baseline& plain) {
  const Bytes budget = options.budget.resolve(plain.peak);
  if (budget < Bytes()) throw InputError("the budget is negative");
  return budget;
}

Nanos since(Clock::time_point start) {
  return Nanos(std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count());
}

// Puts all violations into one message. An answer that has any is a defect of this library.
void require_valid(const Graph& graph, const Plan& plan, const Machine& machine) {
  const std::vector<Violation> violations = verify(graph, plan, plan.budget, plan.problem, machine);
  std::string text;
  for (const Violation& violation : violations) text += "\n  " + violation.message;
  if (plan.time < plan.lower_bound) text += "\n  the plan is faster than its lower bound";
  if (plan.termination == Termination::kOptimal && plan.time != plan.lower_bound) {
    text += "\n  the plan is called optimal but does not reach its lower bound";
  }
  if (!text.empty()) {
    throw InternalError("planner '" + plan.planner + "' made an invalid plan for '" +
                        plan.problem.name + "':" + text);
  }
}

// The planner sees the graph without inadmissible options or variants; the caller sees the whole
// one.
struct Graphs {
  const Graph& admissible;
  const Graph& whole;
  const Machine& machine;
};

std::pair<Bytes, Nanos> cost_of(const Graph& graph, const std::vector<Action>& actions,
                                const Machine& machine) {
  const Timeline timeline = simulate(graph, actions, machine);
  return {timeline.peak, timeline.time};
}

Plan complete_plan(const Graphs& graphs, Answer answer, const PlanResult& result,
                   ProblemId problem) {
  Plan plan;
  plan.problem = std::move(problem);
  plan.planner = result.planner;
  plan.termination = result.termination;
  plan.schedule_class = result.schedule_class;
  plan.budget = result.budget;
  plan.lower_bound = result.lower_bound;
  plan.baseline = result.baseline;
  plan.search = result.search;
  plan.machine_sha256 = result.machine_sha256;
  plan.actions = answer.actions.empty() ? with_frees(graphs.admissible, answer.runs)
                                        : std::move(answer.actions);
  std::tie(plan.peak, plan.time) = cost_of(graphs.whole, plan.actions, graphs.machine);
  require_valid(graphs.whole, plan, graphs.machine);
  return plan;
}

PlanResult complete(const PlannerInfo& planner, const Graphs& graphs, const Baseline& plain,
                    Bytes budget, Answer answer, Nanos wall, ProblemId problem) {
  PlanResult result;
  result.termination = answer.termination;
  result.planner = planner.name;
  result.schedule_class =
      answer.schedule_class.empty() ? planner.schedule_class : answer.schedule_class;
  result.proof = planner.proof;
  result.budget = budget;
  if (!graphs.machine.channels.empty()) result.machine_sha256 = machine_sha256(graphs.machine);
  result.lower_bound = answer.lower_bound;
  result.baseline = plain;
  result.smallest_budget = answer.smallest_budget;
  result.blocking_op = answer.blocking_op;
  result.search = {wall, answer.search_memory};
  if (answer.termination == Termination::kInfeasible &&
      (!answer.smallest_budget || *answer.smallest_budget <= budget)) {
    throw InternalError("planner '" + result.planner + "' refused a budget that suffices");
  }
  if (answer.found()) {
    result.plan = complete_plan(graphs, std::move(answer), result, std::move(problem));
  }
  return result;
}

constexpr const char* kGraphsOnAMachine = "graph_levels";
constexpr const char* kGraphsOnDevices = "devices";

const char* usual_planner(const Graph& graph, const Machine& machine) {
  if (machine.channels.empty()) return "graph";
  const bool spreads = has_devices(machine) && internal::common::names_devices(graph);
  return spreads ? kGraphsOnDevices : kGraphsOnAMachine;
}

// Returns what the planner may use of the graph.
Graph admissible_for(const PlannerInfo& planner, const Graph& graph, const PlanOptions& options) {
  const Graph exact = restrict_exactness(graph, options.allow);
  if (!internal::common::names_devices(exact)) return exact;
  return planner.devices ? internal::common::restrict_devices(exact, options.machine)
                         : internal::common::first_device_only(exact, options.machine);
}

// A graph without operations has one plan, and needs no search.
Answer empty_answer(const Graph& graph, Bytes budget) {
  internal::common::Candidates candidates(graph, budget);
  candidates.consider({});
  return candidates.answer(Nanos(0), true);
}

void refuse_homes_on_devices(const PlannerInfo& planner) {
  throw InputError(fmt::format(
      "planner {} places ops on several devices, and values of this graph live in another memory "
      "than the device (home): choose a planner for one device",
      planner.name));
}

void refuse_homes(const Graph& graph) {
  if (!has_homes(graph)) return;
  throw InputError(
      "values of this graph live in another memory than the device (home): its curve needs the "
      "machine with that memory");
}

template <class Model>
Frontier frontier_on_machine(const Model& model, const Graph& graph, const PlanOptions& options) {
  const auto ask = [&](const PlanOptions& one) { return plan(model, one); };
  Frontier curve = internal::curve_of_single_budgets(ask, options, baseline(graph).peak);
  curve.problem = problem_id(model);
  return curve;
}

}  // namespace

PlanResult plan(const Chain& chain, const PlanOptions& options) {
  validate(chain);
  check_options(options);
  const char* usual = options.machine.channels.empty() ? "chain" : "levels";
  const PlannerInfo& planner = chosen_planner(options, usual, "chains", &PlannerInfo::plan_chain);
  check_machine(planner, options.machine);
  const Chain admissible = restrict_exactness(chain, options.allow);
  const Graph graph = lower(admissible);
  const std::optional<Graph> other =
      admissible == chain ? std::nullopt : std::optional(lower(chain));
  const Graph& whole = other ? *other : graph;
  const Baseline plain = baseline(whole);
  const Bytes budget = resolve_budget(options, plain);
  const Clock::time_point start = Clock::now();
  Answer answer = planner.plan_chain({admissible, graph, plain, budget, options});
  return complete(planner, {graph, whole, options.machine}, plain, budget, std::move(answer),
                  since(start), problem_id(chain));
}

PlanResult plan(const Graph& graph, const PlanOptions& options) {
  validate(graph);
  check_options(options);
  require_homes(graph, options.machine);
  const char* usual = usual_planner(graph, options.machine);
  const PlannerInfo& planner = chosen_planner(options, usual, "graphs", &PlannerInfo::plan_graph);
  check_machine(planner, options.machine);
  if (has_homes(graph) && planner.devices) refuse_homes_on_devices(planner);
  const Graph admissible = admissible_for(planner, graph, options);
  const Baseline plain = baseline(graph);
  const Bytes budget = resolve_budget(options, plain);
  const Clock::time_point start = Clock::now();
  Answer answer = admissible.ops.empty()
                            ? empty_answer(internal::place::without_homes(admissible), budget)
                            : planner.plan_graph({admissible, plain, budget, options});
  return complete(planner, {admissible, graph, options.machine}, plain, budget,
                  std::move(answer), since(start), problem_id(graph));
}

PlanResult plan(const Join& join, const PlanOptions& options) {
  validate(join);
  check_options(options);
  PlanOptions of_graph = options;
  if (options.planner.empty() && !options.machine.channels.empty()) {
    of_graph.planner = kGraphsOnAMachine;
  }
  if (!of_graph.planner.empty() && find_planner(of_graph.planner).plan_graph != nullptr) {
    PlanResult result = plan(lower(join), of_graph);
    if (result.plan) result.plan->problem = problem_id(join);
    return result;
  }
  const PlannerInfo& planner = chosen_planner(options, "join", "joins", &PlannerInfo::plan_join);
  check_machine(planner, options.machine);
  const Join admissible = restrict_exactness(join, options.allow);
  const Graph graph = lower(admissible);
  const Baseline plain = baseline(lower(join));
  const Bytes budget = resolve_budget(options, plain);
  const Clock::time_point start = Clock::now();
  Answer answer = planner.plan_join({admissible, graph, plain, budget, options});
  const Nanos wall = since(start);
  // From here on the backwards stand in the order of the answer.
  const Interleaving order = interleaving_of(join, with_frees(graph, answer.runs));
  const Graph ordered = lower(admissible, order), whole = lower(join, order);
  for (Run& run : answer.runs) run.op = find_op(ordered, graph.ops[run.op].id);
  PlanResult result = complete(planner, {ordered, whole, options.machine}, baseline(whole), budget,
                               std::move(answer), wall, problem_id(join));
  result.baseline = plain;
  return result;
}

Frontier frontier(const Chain& chain, const PlanOptions& options) {
  validate(chain);
  check_options(options);
  if (!options.machine.channels.empty()) return frontier_on_machine(chain, lower(chain), options);
  const PlannerInfo& planner =
      chosen_planner(options, "chain", "curves of chains", &PlannerInfo::chain_frontier);
  const Chain admissible = restrict_exactness(chain, options.allow);
  const Graph graph = lower(admissible);
  const std::optional<Graph> other =
      admissible == chain ? std::nullopt : std::optional(lower(chain));
  const Graph& whole = other ? *other : graph;
  const ChainProblem problem{admissible, graph, baseline(whole), Budget().resolve(Bytes()),
                             options};
  Curve curve = planner.chain_frontier(problem);
  if (curve.schedule_class.empty()) curve.schedule_class = planner.schedule_class;
  return {problem_id(chain), planner.name, std::move(curve.points),
          std::move(curve.schedule_class)};
}

Frontier frontier(const Graph& graph, const PlanOptions& options) {
  validate(graph);
  check_options(options);
  if (!options.machine.channels.empty()) return frontier_on_machine(graph, graph, options);
  refuse_homes(graph);
  const PlannerInfo& planner =
      chosen_planner(options, "graph", "curves of graphs", &PlannerInfo::graph_frontier);
  const Graph admissible = admissible_for(planner, graph, options);
  const Baseline plain = baseline(graph);
  const Bytes unlimited = Budget().resolve(Bytes());
  const ProblemId id = problem_id(graph);
  Frontier curve{id, planner.name, {}, planner.schedule_class};
  for (const Answer& answer : planner.graph_frontier({admissible, plain, unlimited, options})) {
    const PlanResult result = complete(planner, {admissible, graph, options.machine}, plain,
                                       unlimited, answer, Nanos(), id);
    const Plan& plan = *result.plan;
    curve.points.push_back({plan.peak, plan.peak, plan.time, plan.lower_bound});
  }
  return curve;
}

Frontier frontier(const Join& join, const PlanOptions& options) {
  Frontier curve = frontier(lower(join), options);
  curve.problem = problem_id(join);
  return curve;
}

}  // namespace reprise
