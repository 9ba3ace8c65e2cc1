#include "runtime/chain/remat_state.h"

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>

#include "reprise/check/simulate.h"
#include "reprise/model/errors.h"
#include "reprise/model/lower.h"
#include "reprise/report/text.h"
#include "reprise/runtime/allocator.h"
#include "runtime/chain/measure.h"
#include "runtime/device/activity.h"
#include "runtime/device/backward_queue.h"
#include "runtime/device/compat.h"
#include "runtime/device/plain_tensors.h"
#include "runtime/device/tensor_bytes.h"

namespace reprise::runtime {

using internal::chain::key_of;
using internal::chain::measure;
using internal::chain::MeasuredChain;
using internal::chain::ModelContents;
using internal::chain::PlanKey;
using internal::chain::PlannedModel;
using internal::chain::prepare;
using internal::device::drain_backward_queue;
using internal::device::Measuring;
using internal::device::require_plain;
using internal::device::uncounted_bytes;
using internal::transfer::open_memory;

namespace {

at::Tensor default_loss(const Tensors& outputs) {
  const at::Tensor& y = outputs.at(0);
  if (y.dim() < 2) return y.square().mean();
  std::vector<int64_t> sizes = y.sizes().vec();
  sizes.erase(sizes.begin() + 1);
  return at::cross_entropy_loss(y, at::zeros(sizes, y.options().dtype(at::kLong)));
}

// Describes an op of the lowered chain in the words of the user: "backward of stage 'block3'".
std::string describe_op(const std::string& id, const Chain& chain) {
  if (id.empty()) return id;
  const Graph graph = lower(chain);
  const OpIndex op = find_op(graph, id);
  const std::optional<size_t> stage = ChainIndex{chain.stages.size()}.stage_of(op);
  if (!stage) return id;
  return fmt::format("{} of stage '{}'", to_string(graph.ops[op].phase), chain.stages[*stage].name);
}

// Returns whether the last stage makes its output a second time for a backward that reads it.
// Without a plan: whether the smallest budget of an infeasible answer may have to include a second
// output.
bool makes_second_output(const Chain& chain, const PlanResult& result) {
  if (chain.loss.consumes) return false;
  if (!result.plan) return result.termination == Termination::kInfeasible;
  const OpIndex forward = ChainIndex{chain.stages.size()}.forward(chain.stages.size() - 1);
  const std::string last = lower(chain).ops[forward].id;
  return std::count_if(result.plan->actions.begin(), result.plan->actions.end(),
                       [&](const Action& action) {
                         return action.kind == ActionKind::kRun && action.id == last;
                       }) > 1;
}

// Returns whether the plan moves one of these values.
bool moves_any(const PlanResult& result, const std::vector<std::string>& stays) {
  if (!result.plan || stays.empty()) return false;
  return std::any_of(result.plan->actions.begin(), result.plan->actions.end(),
                     [&](const Action& action) {
                       return action.kind == ActionKind::kCopy &&
                              std::find(stays.begin(), stays.end(), action.id) != stays.end();
                     });
}

// A chain has one output at a time. If the caller holds the first output, it is live beside the
// second until the backward is over. After that it counts with the weight gradients. This chain
// asks for too much memory in plans that make only one output.
Chain with_second_output(Chain chain) {
  reprise::Stage& last = chain.stages.back();
  for (StageOption& option : last.options) option.forward.workspace += last.output;
  return chain;
}

}  // namespace

Chain Remat::State::Instance::problem() const {
  return second_output ? with_second_output(planned->chain) : planned->chain;
}

Remat::State::Instance& Remat::State::instance_for(const Tensors& inputs,
                                                   const ModelContents& contents) {
  drop_outdated();
  PlanKey key = key_of(inputs, contents);
  for (const auto& instance : instances) {
    if (instance->key == key) return *instance;
  }
  auto instance = std::make_unique<Instance>(std::move(key));
  MeasureOptions measuring = options.measure;
  if (!measuring.observer) measuring.observer = options.observer;
  const Loss loss = options.loss ? options.loss : default_loss;
  const Measuring alone;
  instance->planned = std::make_shared<PlannedModel>(prepare(stages, inputs));
  MeasuredChain measured = measure(instance->planned->model, inputs, loss, measuring);
  instance->spread = std::move(measured.spread);
  instance->processor_percent = measured.processor_percent;
  instance->stays = std::move(measured.stays);
  instance->planned->memories = {nullptr, far.memory};
  instance->planned->set_measured(std::move(measured));
  for (const at::Tensor& x : inputs) instance->example_shape.push_back(x.detach().to(at::kMeta));
  instances.push_back(std::move(instance));
  return *instances.back();
}

void Remat::State::open_far_memory(const Tensors& inputs) {
  if (options.offload.to.empty() || far.memory) return;
  if constexpr (!internal::device::kStoragesReturn) {
    throw InputError(
        "values move to another memory with LibTorch 2.12 or newer, in which memory can come back "
        "into a tensor that it has left; leave `offload` out");
  }
  const Measuring alone;
  if (options.observer) options.observer({"profile", 0, "the memory behind the device"});
  far = open_memory(options.offload, inputs[0].device());
}

void Remat::State::drop_outdated() {
  std::erase_if(instances, [&](const std::unique_ptr<Instance>& instance) {
    if (!instance->planned->outdated) return false;
    if (last == instance.get()) last = nullptr;
    return true;
  });
}

void Remat::State::make_plan(Instance& instance, int64_t offset) {
  Chain& chain = instance.planned->chain;
  chain.fixed += Bytes(offset - instance.offset);
  instance.offset = offset;
  PlanOptions planning{.budget = options.budget,
                       .planner = options.planner,
                       .schedule_class = kScheduleClass,
                       .time_limit = options.time_limit,
                       .observer = options.observer,
                       .machine = far.machine};
  if (options.budget.relative()) {
    // A share refers to the first plan's baseline, so other memory that comes later does not raise
    // it.
    if (instance.baseline_peak == Bytes(0)) instance.baseline_peak = baseline(lower(chain)).peak;
    planning.budget = options.budget.resolve(instance.baseline_peak);
  }
  instance.result = {};  // the old plan is for another level and must not outlive a failure
  PlanResult result = reprise::plan(chain, planning);
  if (moves_any(result, instance.stays)) {
    if (options.observer) {
      options.observer({"plan", 0, "moving nothing: a stage keeps memory that no operator made"});
    }
    planning.machine = {};
    planning.planner.clear();
    result = reprise::plan(chain, planning);
  }
  instance.second_output = options.measure.output_held && makes_second_output(chain, result);
  if (instance.second_output) {
    const Nanos bound = result.lower_bound;  // holds for all plans
    result = reprise::plan(instance.problem(), planning);
    result.lower_bound = bound;
  }
  ++report.plans;
  if (!result.plan) {
    const std::string message =
        explain_no_plan(result, describe_op(result.blocking_op, chain)) +
        (result.termination == Termination::kInfeasible ? "" : " Raise time_limit or the budget.");
    throw BudgetError(message, result.budget.count(), (chain.fixed + chain.input.bytes).count(),
                      result.smallest_budget.value_or(Bytes(0)).count());
  }
  instance.planned->set_plan(lower(chain), result.plan->actions, planning.machine);
  instance.result = std::move(result);
}

int64_t Remat::State::replan_if_needed(Instance& instance, const Tensors& inputs,
                                       const ModelContents& contents) {
  const c10::Device device = instance.planned->model.device;
  Tensors resident = inputs;
  for (const at::Tensor& parameter : contents.parameters) {
    resident.push_back(parameter);
    resident.push_back(parameter.grad());
  }
  resident.insert(resident.end(), contents.buffers.begin(), contents.buffers.end());
  const int64_t uncounted = uncounted_bytes(resident);
  const Chain& chain = instance.planned->chain;
  const int64_t planned_level = (chain.fixed + chain.input.bytes).count();
  int64_t drift = memory_count(device).live + uncounted - planned_level;
  if (drift > 0) {  // a failed pass may have left memory in autograd's queue
    drain_backward_queue();
    drift = memory_count(device).live + uncounted - planned_level;
  }
  const bool planned = instance.result.plan.has_value();
  const bool too_little_room =
      planned && instance.result.plan->peak + Bytes(drift) > instance.result.budget;
  const bool much_more_room = planned && -drift > instance.result.budget.count() / 100;
  if (!planned || too_little_room || much_more_room) make_plan(instance, instance.offset + drift);
  return uncounted;
}

int64_t Remat::State::ready(const Tensors& inputs, const ModelContents& contents) {
  if (inputs.empty()) throw InputError("the model was given no input");
  for (const at::Tensor& input : inputs) {
    if (!input.defined()) throw InputError("the model was given an undefined tensor");
    require_plain(input, instances.empty() ? "the sample input" : "an input");
  }
  for (const Stage& stage : stages) {
    if (stage.module) require_plain(*stage.module, fmt::format(" of stage '{}'", stage.name));
  }
  if (inputs[0].device().is_cpu()) install_cpu_allocator();
  open_far_memory(inputs);
  Instance& instance = instance_for(inputs, contents);
  const int64_t uncounted = replan_if_needed(instance, inputs, contents);
  last = &instance;
  return uncounted;
}

Tensors Remat::State::run_plain(Tensors x) const {
  for (const Stage& stage : stages) x = stage.forward(x);
  return x;
}

}  // namespace reprise::runtime
