#include "reprise/runtime/remat.h"

#include <utility>
#include <variant>

#include "reprise/model/errors.h"
#include "reprise/model/lower.h"
#include "runtime/chain/execute.h"
#include "runtime/chain/measure.h"
#include "runtime/chain/remat_state.h"
#include "runtime/chain/remat_step.h"
#include "runtime/modules/stage_modules.h"

namespace reprise::runtime {

using internal::chain::describe;
using internal::chain::PlannedModel;
using internal::chain::run_step;
using internal::modules::register_stages;

Remat::Remat(std::vector<Stage> stages, RematOptions options)
    : torch::nn::Module("Remat"), state_(std::make_shared<State>()) {
  register_stages(*this, stages);
  state_->branches = {{"", std::move(stages)}};
  state_->options = std::move(options);
}

Remat::~Remat() = default;

at::Tensor Remat::forward(const at::Tensor& input) {
  Tensors outputs = forward(Tensors{input});
  if (outputs.size() != 1) {
    throw InputError("the model returns " + std::to_string(outputs.size()) +
                     " tensors; call forward with a list");
  }
  return std::move(outputs[0]);
}

Tensors Remat::forward(const Tensors& inputs) { return run_step(state_, {inputs}); }

void Remat::plan_for(const Tensors& inputs) {
  const internal::device::Turns::Turn turn(state_->turns);
  state_->ready({inputs}, state_->contents());
}

void Remat::set_budget(Budget budget) {
  const internal::device::Turns::Turn turn(state_->turns);
  state_->set_budget(std::move(budget));
}

const PlanResult& Remat::plan() const { return state_->planned().result; }

const Chain& Remat::chain() const { return state_->planned().planned->chain; }

const Machine& Remat::machine() const { return state_->offload_memory.machine; }

Profile Remat::profile() const {
  const State::Instance& instance = state_->planned();
  return describe(instance.planned->model, instance.example_shape,
                  {.chain = std::get<Chain>(instance.problem()),
                   .spread = instance.spread,
                   .processor_percent = instance.processor_percent});
}

StepReport Remat::last_step() const {
  const internal::device::Turns::Turn turn(state_->turns);
  return state_->reported();
}

int64_t Remat::overhead_count() const { return state_->overheads.count(); }

void Remat::log_steps(int64_t steps) { state_->log.want(steps); }

std::optional<RunLog> Remat::run_log() const {
  const State::Instance& instance = state_->planned();
  const PlannedModel& model = *instance.planned;
  return state_->log.run_log(*model.program, lower(std::get<Chain>(instance.problem())),
                             *instance.result.plan, model.model.device, machine());
}

std::shared_ptr<Remat> remat(std::vector<Stage> stages, const Tensors& sample,
                             RematOptions options) {
  auto model = std::make_shared<Remat>(std::move(stages), std::move(options));
  model->plan_for(sample);
  return model;
}

}  // namespace reprise::runtime
