#include "plan/chain_classes.h"

#include <algorithm>

#include "plan/chain_bound.h"
#include "reprise/model/errors.h"

namespace reprise::internal {
namespace {

constexpr const char* kPersistent = "persistent";
// Merged chains that save less than this are no help for the chain itself.
constexpr double kGain = 0.01;

constexpr const char* kDroppedInputs = "persistent+dropped-inputs";

}  // namespace

const char* class_name(Dropping dropping) {
  return dropping == Dropping::kNothing ? kPersistent : kDroppedInputs;
}

std::vector<Dropping> wanted_classes(const std::string& name) {
  if (name == kPersistent) return {Dropping::kNothing};
  if (name.empty() || name == kDroppedInputs) return {Dropping::kNothing, Dropping::kInputs};
  throw InputError("planner 'chain' has no schedule class '" + name + "'; it has '" + kPersistent +
                   "' and '" + kDroppedInputs + "'");
}

Outcome search_class(const ChainModel& model, Dropping dropping, int64_t memory,
                     const std::optional<Trace>& known, int threads, SearchControl& control) {
  Outcome outcome{dropping};
  Bracket& bracket = outcome.bracket;
  bracket.best = known;
  const ChainCells cells(model, /*share=*/true, dropping);
  improve_by_blocks(model, dropping, memory, cells.complete() ? kGain : 0, threads, bracket,
                    control);
  if (bracket.best) {
    bracket.lower = std::min(LossBound(model, dropping, memory).lower(), bracket.best->cost);
  }
  if (!cells.complete() || control.out_of_time()) return outcome;
  const SearchSpace space{model, cells, threads};
  if (!bracket.best) {
    const std::vector<int64_t> floors = smallest_memory(model, cells, threads, control);
    if (floors.empty()) return outcome;
    outcome.floor = floors[space.root()];
    if (*outcome.floor > memory) {
      outcome.smallest = greedy(space, floors, *outcome.floor).runs;
      return outcome;
    }
    bracket.best = greedy(space, floors, memory);
  }
  narrow(space, memory, {}, bracket, control);
  return outcome;
}

}  // namespace reprise::internal
