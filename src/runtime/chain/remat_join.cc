#include "reprise/runtime/remat_join.h"

#include <set>
#include <string>
#include <utility>
#include <variant>

#include "reprise/model/errors.h"
#include "runtime/chain/remat_state.h"
#include "runtime/chain/remat_step.h"
#include "runtime/modules/stage_modules.h"

namespace reprise::runtime {

using internal::chain::run_step;
using internal::modules::register_stages;

namespace {

void check(const std::vector<StageBranch>& branches, const std::vector<Stage>& tail,
           const RematOptions& options) {
  if (branches.size() < 2) {
    throw InputError("a join has two branches or more; one branch is a chain, for remat()");
  }
  std::set<std::string> names;
  for (const StageBranch& branch : branches) {
    if (branch.name.empty() || branch.name.find('/') != std::string::npos) {
      throw InputError("'" + branch.name + "' is no name of a branch: give one without '/'");
    }
    if (!names.insert(branch.name).second) {
      throw InputError("two branches are named '" + branch.name + "'; names are unique");
    }
  }
  if (tail.empty() && !options.loss) {
    throw InputError("branches meet in a loss: give it as an option, or give a tail");
  }
  if (!options.offload.to.empty()) {
    throw InputError("values of a join do not move to a disk; leave the disk out");
  }
  if (!options.planner.empty() && options.planner != "join") {
    throw InputError("a join is run by plans of the planner 'join', not of '" + options.planner +
                     "'; leave the planner out");
  }
}

// Returns all stages, with names that say where they stand.
std::vector<Stage> all_stages(const std::vector<StageBranch>& branches,
                              const std::vector<Stage>& tail) {
  std::vector<Stage> all;
  const auto add = [&](const std::string& prefix, const std::vector<Stage>& stages) {
    for (Stage stage : stages) {
      stage.name = prefix + "_" + stage.name;
      all.push_back(std::move(stage));
    }
  };
  for (const StageBranch& branch : branches) add(branch.name, branch.stages);
  add("tail", tail);
  return all;
}

}  // namespace

RematJoin::RematJoin(std::vector<StageBranch> branches, std::vector<Stage> tail,
                     RematOptions options)
    : torch::nn::Module("RematJoin"), state_(std::make_shared<Remat::State>()) {
  check(branches, tail, options);
  register_stages(*this, all_stages(branches, tail));
  state_->branches = std::move(branches);
  state_->tail = std::move(tail);
  state_->options = std::move(options);
}

RematJoin::~RematJoin() = default;

Tensors RematJoin::forward(const std::vector<Tensors>& inputs) { return run_step(state_, inputs); }

void RematJoin::plan_for(const std::vector<Tensors>& inputs) {
  const internal::device::Turns::Turn turn(state_->turns);
  state_->ready(inputs, state_->contents());
}

void RematJoin::set_budget(Budget budget) {
  const internal::device::Turns::Turn turn(state_->turns);
  state_->set_budget(std::move(budget));
}

const PlanResult& RematJoin::plan() const { return state_->planned().result; }

Join RematJoin::join() const { return std::get<Join>(state_->planned().problem()); }

StepReport RematJoin::last_step() const {
  const internal::device::Turns::Turn turn(state_->turns);
  return state_->reported();
}

int64_t RematJoin::overhead_count() const { return state_->overheads.count(); }

std::shared_ptr<RematJoin> remat_join(std::vector<StageBranch> branches, std::vector<Stage> tail,
                                      const std::vector<Tensors>& samples, RematOptions options) {
  auto model =
      std::make_shared<RematJoin>(std::move(branches), std::move(tail), std::move(options));
  model->plan_for(samples);
  return model;
}

}  // namespace reprise::runtime
