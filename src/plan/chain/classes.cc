#include "plan/chain/classes.h"

#include <fmt/format.h>

#include <algorithm>

#include "plan/baselines/baselines.h"
#include "plan/chain/bound.h"
#include "plan/common/candidates.h"
#include "reprise/model/errors.h"

namespace reprise::internal::chain {

using baselines::consider_min_peak;
using baselines::consider_revolve;
using common::Candidates;
using common::least_time;
using common::peak_op;
using common::SearchControl;

namespace {

// For this many cells, the smallest memory is known within some 10 ms. It is then computed whatever
// the time limit.
constexpr size_t kFewCells = 50'000;

constexpr const char* kInputsOnly = "inputs-only";
constexpr const char* kPersistent = "persistent";
constexpr const char* kDroppedInputs = "persistent+dropped-inputs";

}  // namespace

const char* class_name(Schedules schedules) {
  switch (schedules) {
    case Schedules::kInputsOnly:
      return kInputsOnly;
    case Schedules::kPersistent:
      return kPersistent;
    case Schedules::kDroppedInputs:
      return kDroppedInputs;
  }
  throw InternalError("a class of schedules without a name");
}

std::vector<Schedules> wanted_classes(const std::string& name) {
  if (name == kInputsOnly) return {Schedules::kInputsOnly};
  if (name == kPersistent) return {Schedules::kPersistent};
  if (name.empty() || name == kDroppedInputs) {
    return {Schedules::kPersistent, Schedules::kDroppedInputs};
  }
  throw InputError(fmt::format("planner 'chain' has no schedule class '{}'; it has '{}', '{}' and '{}'",
                               name, kInputsOnly, kPersistent, kDroppedInputs));
}

ClassResult quick_plan(const ChainModel& model, const ChainCells& cells, int64_t memory,
                       const std::optional<Trace>& known, int threads, SearchControl& control) {
  ClassResult outcome{cells.schedules()};
  Bracket& bracket = outcome.bracket;
  bracket.best = known;
  // A plan of a merged chain keeps the stages of a block together.
  if (cells.schedules() != Schedules::kInputsOnly) {
    improve_by_blocks(model, cells.schedules(), memory, cells.complete() ? kWorthwhileGain : 0,
                      threads, bracket, control);
  }
  if (!bracket.best && cells.complete()) {
    const SearchSpace space{model, cells, threads};
    SearchControl patient = cells.order().size() <= kFewCells ? control.untimed() : control;
    const std::vector<int64_t> floors = smallest_memory(model, cells, threads, patient);
    if (floors.empty()) return outcome;
    outcome.floor = floors[space.root()];
    if (outcome.floor > memory) {
      outcome.smallest = greedy(space, floors, outcome.floor).runs;
      return outcome;
    }
    bracket.best = greedy(space, floors, memory);
  }
  if (bracket.best) {
    const LossBound bound(model, cells.schedules(), memory);
    bracket.lower = std::min(bound.lower(), bracket.best->cost);
  }
  return outcome;
}

void finish_search(const SearchSpace& space, int64_t memory, ClassResult& outcome,
                   SearchControl& control) {
  if (!outcome.bracket.best || !space.cells.complete()) return;
  narrow(space, memory, {}, outcome.bracket, control);
}

ClassResult search_class(const ChainModel& model, Schedules schedules, int64_t memory,
                         const std::optional<Trace>& known, int threads, SearchControl& control) {
  const ChainCells cells(model, /*share=*/true, schedules);
  ClassResult outcome = quick_plan(model, cells, memory, known, threads, control);
  finish_search({model, cells, threads}, memory, outcome, control);
  return outcome;
}

Answer to_answer(const ChainProblem& problem, const ChainModel& model, const ClassResult& outcome) {
  const Bracket& bracket = outcome.bracket;
  Answer answer;
  answer.schedule_class = class_name(outcome.schedules);
  answer.search_memory = bracket.memory;
  if (bracket.best) {
    answer.termination = bracket.proven(model) ? Termination::kOptimal : Termination::kFeasible;
    answer.runs = bracket.best->runs;
    answer.lower_bound = Nanos(model.time_of(bracket.lower));
  } else if (outcome.infeasible()) {
    answer.termination = Termination::kInfeasible;
    answer.smallest_budget = Bytes(outcome.floor + bytes_around(model));
    answer.blocking_op = peak_op(problem.graph, outcome.smallest);
  }
  return answer;
}

Answer simplest_plan(const ChainProblem& problem, const char* planner) {
  PlanOptions options = problem.options;
  options.time_limit =
      Nanos(static_cast<int64_t>(static_cast<double>(options.time_limit.count()) * kReserve));
  SearchControl control(options, planner);
  Candidates candidates(problem.graph, problem.budget);
  candidates.consider(plain_runs(problem.graph));
  consider_min_peak(problem.chain, problem.budget, candidates, control);
  consider_revolve(problem.chain, candidates, control);
  return candidates.answer(least_time(problem.chain), false);
}

}  // namespace reprise::internal::chain
