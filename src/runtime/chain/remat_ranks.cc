// The part of a Remat that plans together with other ranks.
#include <algorithm>
#include <memory>

#include "reprise/model/errors.h"
#include "runtime/chain/agreement.h"
#include "runtime/chain/remat_state.h"

namespace reprise::runtime::internal::chain {

bool ModelState::has_sharded_parameters() const {
  return any_stage([](const Stage& stage) { return stage.sharded != nullptr; });
}

bool ModelState::has_ways() const {
  return any_stage([](const Stage& stage) { return !stage.ways.empty(); });
}

bool ModelState::any_stage(const std::function<bool(const Stage&)>& matches) const {
  return std::any_of(tail.begin(), tail.end(), matches) ||
         std::any_of(branches.begin(), branches.end(), [&](const StageBranch& branch) {
           return std::any_of(branch.stages.begin(), branch.stages.end(), matches);
         });
}

void ModelState::find_ranks() {
  if (ranks || options.group.empty()) {
    if (!ranks && (has_sharded_parameters() || has_ways())) {
      throw InputError(
          "stages with sharded parameters or with other ways need RematOptions::group");
    }
    return;
  }
  if (branches.size() > 1 || !tail.empty()) {
    throw InputError("ranks plan a single chain together, and this model has several branches");
  }
  ranks = std::make_shared<distributed::Ranks>(options.group);
}

PlanResult ModelState::ask(const Problem& problem, const PlanOptions& planning) const {
  return ranks ? plan_together(*ranks, problem, planning)
               : chain::plan(problem, planning);
}

}  // namespace reprise::runtime::internal::chain
