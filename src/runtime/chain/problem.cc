#include "runtime/chain/problem.h"

#include <algorithm>
#include <utility>

#include "reprise/model/lower.h"

namespace reprise::runtime::internal::chain {
namespace {

// By parameter: the stages that use it, if they belong to several branches.
std::vector<SharedWeights> shared_weights(const PreparedModel& model) {
  std::vector<SharedWeights> uses(model.parameters.size());
  for (size_t i = 0; i < model.stages.size(); ++i) {
    const size_t branch = model.branch_of(i);
    for (const size_t p : model.stages[i].parameters) {
      uses[p].push_back({branch, i - model.branches[branch].first});
    }
  }
  std::vector<SharedWeights> shared;
  for (SharedWeights& own : uses) {
    if (own.empty() || own.front().branch == own.back().branch) continue;
    // The parameters of a stage mostly have the same uses.
    if (std::find(shared.begin(), shared.end(), own) == shared.end()) {
      shared.push_back(std::move(own));
    }
  }
  return shared;
}

}  // namespace

Problem problem_of(const PreparedModel& model, const Chain& stages,
                   const std::vector<ChainInput>& inputs) {
  if (model.branches.size() == 1) return stages;
  Join join;
  join.name = stages.name;
  join.fixed = stages.fixed;
  join.loss = stages.loss;
  for (size_t b = 0; b < model.branches.size(); ++b) {
    const auto all = stages.stages.begin();
    join.branches.push_back({model.branches[b].name,
                             inputs[b],
                             {all + static_cast<std::ptrdiff_t>(model.branches[b].first),
                              all + static_cast<std::ptrdiff_t>(model.end_of(b))}});
  }
  join.shared = shared_weights(model);
  return join;
}

Interleaving order_of(const Problem& problem, const std::vector<Action>& actions) {
  if (const Chain* chain = std::get_if<Chain>(&problem)) {
    return Interleaving(chain->stages.size(), 0);
  }
  return interleaving_of(std::get<Join>(problem), actions);
}

Graph lowered(const Problem& problem, const Interleaving& order) {
  if (const Chain* chain = std::get_if<Chain>(&problem)) return lower(*chain);
  return lower(std::get<Join>(problem), order);
}

PlanResult plan(const Problem& problem, const PlanOptions& options) {
  return std::visit([&](const auto& asked) { return reprise::plan(asked, options); }, problem);
}

}  // namespace reprise::runtime::internal::chain
