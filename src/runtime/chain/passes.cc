#include "runtime/chain/passes.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "reprise/model/lower.h"

namespace reprise::runtime::internal::chain {
namespace {

// Runs are the positions in the program where a stage is kept and where its backward runs.
struct Runs {
  size_t kept = 0, backward = 0;
  bool once = false;  // kept only once, in autograd's own way
};

std::vector<Runs> find_runs(const std::vector<Program::Entry>& steps, const Places& places,
                            const std::vector<reprise::Stage>& measured) {
  std::vector<Runs> runs(places.stages());
  std::vector<int> times(places.stages());
  for (size_t s = 0; s < steps.size(); ++s) {
    if (steps[s].kind != ActionKind::kRun) continue;
    const RunAction& run = steps[s].run;
    const size_t op = static_cast<size_t>(run.op);
    if (op > places.stages()) {
      runs[places.stage_of_backward(run.op)].backward = s;
    } else if (op < places.stages() && run.variant > 0) {
      runs[op].kept = s;
      runs[op].once = ++times[op] == 1 && forward_run(measured[op], run.variant).option == 0;
    }
  }
  return runs;
}

// Returns whether there is no other run between the two.
bool follows(const std::vector<Program::Entry>& steps, size_t first, size_t second) {
  return first < second &&
         std::none_of(steps.begin() + static_cast<std::ptrdiff_t>(first) + 1,
                      steps.begin() + static_cast<std::ptrdiff_t>(second),
                      [](const Program::Entry& step) { return step.kind == ActionKind::kRun; });
}

// Returns whether there is nothing between the two but frees on the device. A copy that begins
// there, or a wait, has to happen at its place.
bool frees_between(const std::vector<Program::Entry>& steps, size_t first, size_t second) {
  return first < second && std::all_of(steps.begin() + static_cast<std::ptrdiff_t>(first) + 1,
                                       steps.begin() + static_cast<std::ptrdiff_t>(second),
                                       [](const Program::Entry& step) {
                                         return step.kind == ActionKind::kFree && step.memory == 0;
                                       });
}

}  // namespace

Passes::Passes(const std::vector<PreparedStage>& stages) {
  for (const PreparedStage& stage : stages) begin(stage);
}

Passes::Passes(const PreparedModel& model, const Places& places, const Program& program,
               const std::vector<reprise::Stage>& measured,
               const std::vector<bool>& copies_gradients) {
  const std::vector<PreparedStage>& stages = model.stages;
  const std::vector<Program::Entry>& steps = program.entries();
  const std::vector<Runs> runs = find_runs(steps, places, measured);
  for (size_t i = 0; i < stages.size(); ++i) {
    const bool joins = !model.begins(i) && !stages[i].stage.sharded &&
                       !stages[i - 1].stage.sharded && !copies_gradients[i] && runs[i - 1].once &&
                       runs[i].once && follows(steps, runs[i - 1].kept, runs[i].kept) &&
                       frees_between(steps, runs[i].backward, runs[i - 1].backward);
    if (!joins) {
      begin(stages[i]);
      continue;
    }
    go_on(stages[i]);
    std::vector<ValueIndex>& freed = all_.back().freed.emplace_back();
    for (size_t s = runs[i].backward + 1; s < runs[i - 1].backward; ++s) {
      freed.push_back(steps[s].value);
    }
  }
}

void Passes::begin(const PreparedStage& stage) {
  const size_t i = of_.size();
  of_.push_back(all_.size());
  all_.push_back({.begin = i, .end = i + 1, .parameters = stage.parameters});
}

void Passes::go_on(const PreparedStage& stage) {
  of_.push_back(all_.size() - 1);
  Pass& pass = all_.back();
  ++pass.end;
  std::vector<size_t> both;
  std::set_union(pass.parameters.begin(), pass.parameters.end(), stage.parameters.begin(),
                 stage.parameters.end(), std::back_inserter(both));
  pass.parameters = std::move(both);
}

}  // namespace reprise::runtime::internal::chain
