#include "runtime/chain/remat_state.h"

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <variant>

#include "reprise/check/simulate.h"
#include "reprise/io/json.h"
#include "reprise/model/errors.h"
#include "reprise/model/lower.h"
#include "reprise/report/text.h"
#include "reprise/runtime/allocator.h"
#include "runtime/chain/agreement.h"
#include "runtime/chain/loss_sink.h"
#include "runtime/chain/measure.h"
#include "runtime/chain/problem.h"
#include "runtime/device/activity.h"
#include "runtime/device/backward_queue.h"
#include "runtime/device/plain_tensors.h"
#include "runtime/device/tensor_bytes.h"

namespace reprise::runtime::internal::chain {

using device::drain_backward_queue;
using device::Measuring;
using device::require_plain;
using device::storage_bytes;
using device::uncounted_bytes;
using transfer::AutoMemory;
using transfer::is_auto;
using transfer::OpenedMemory;
using transfer::Verdict;

namespace {

at::Tensor default_loss(const Tensors& outputs) {
  const at::Tensor& y = outputs.at(0);
  if (y.dim() < 2) return y.square().mean();
  std::vector<int64_t> sizes = y.sizes().vec();
  sizes.erase(sizes.begin() + 1);
  return at::cross_entropy_loss(y, at::zeros(sizes, y.options().dtype(at::kLong)));
}

// Describes an op of the lowered problem in the words of the user: "backward of stage 'block3'".
std::string describe_op(const std::string& id, const PlannedModel& planned) {
  if (id.empty()) return id;
  const Problem problem = planned.problem();
  const Graph graph = lowered(problem, order_of(problem));  // backwards are forwards in reverse
  const OpIndex op = find_op(graph, id);
  const std::optional<size_t> stage = ChainIndex{planned.chain.stages.size()}.stage_of(op);
  if (!stage) return id;
  const std::string& branch = planned.model.branches[planned.model.branch_of(*stage)].name;
  return fmt::format("{} of stage '{}'{}", to_string(graph.ops[op].phase),
                     planned.chain.stages[*stage].name,
                     branch.empty() ? "" : " in branch '" + branch + "'");
}

// Returns, by branch, whether the last stage makes its output a second time for a backward that
// reads it. Without a plan: whether the smallest budget of an infeasible answer may have to include
// a second output.
std::vector<bool> second_outputs(const PlannedModel& planned, const PlanResult& result) {
  const PreparedModel& model = planned.model;
  std::vector<bool> second(model.branches.size(), false);
  if (planned.chain.loss.consumes || model.tail) return second;
  if (!result.plan) {
    second.assign(second.size(), result.termination == Termination::kInfeasible);
    return second;
  }
  const Problem problem = planned.problem();
  const Graph graph = lowered(problem, order_of(problem));
  for (size_t b = 0; b < second.size(); ++b) {
    const std::string& last = graph.ops[model.end_of(b) - 1].id;
    const auto& actions = result.plan->actions;
    second[b] = std::count_if(actions.begin(), actions.end(), [&](const Action& action) {
                  return action.kind == ActionKind::kRun && action.id == last;
                }) > 1;
  }
  return second;
}

bool any(const std::vector<bool>& flags) {
  return std::find(flags.begin(), flags.end(), true) != flags.end();
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

}  // namespace

// A branch has one output at a time, and the caller holds the first one until the end of the step. If
// the plan makes a second one, the first one counts with the gradient from the loss on, and after
// that with the weight gradients. While the loss runs, the branch still has it as its own.
Problem ModelState::Instance::problem() const {
  Chain stages = planned->chain;
  for (size_t b = 0; b < second_output.size(); ++b) {
    if (!second_output[b]) continue;
    reprise::Stage& last = stages.stages[planned->model.end_of(b) - 1];
    last.output_gradient = last.output_gradient.value_or(last.output) + last.output;
    Bytes& workspace = stages.loss.cost.workspace;
    workspace -= std::min(workspace, last.output);
  }
  return problem_of(planned->model, stages, planned->inputs);
}

// Plans for the case that the caller holds the outputs, where the plan `result` makes some of them a
// second time.
void ModelState::plan_second_outputs(Instance& instance, const PlanOptions& planning,
                                       PlanResult& result) const {
  std::vector<bool> made = second_outputs(*instance.planned, result);
  std::vector<bool>& room = instance.second_output;
  if (!any(made)) return;
  const Nanos bound = result.lower_bound;  // holds for all plans
  bool enough = false;
  while (!enough) {
    room.resize(made.size());
    for (size_t b = 0; b < made.size(); ++b) room[b] = room[b] || made[b];
    result = ask(instance.problem(), planning);
    made = second_outputs(*instance.planned, result);
    enough = true;
    for (size_t b = 0; b < made.size(); ++b) enough = enough && (room[b] || !made[b]);
  }
  result.lower_bound = bound;
  if (!result.plan || room == made) return;
  // The plan leaves out a second output that it has room for.
  room = made;
  const Problem problem = instance.problem();
  Plan& plan = *result.plan;
  const Graph graph = lowered(problem, order_of(problem, plan.actions));
  plan.problem = std::visit([](const auto& asked) { return problem_id(asked); }, problem);
  plan.baseline = baseline(graph);
  plan.peak = simulate(graph, plan.actions, planning.machine).peak;
}

const ModelState::Instance& ModelState::planned() const {
  if (last == nullptr) throw InputError("nothing is planned yet; call forward or plan_for first");
  return *last;
}

void ModelState::set_budget(Budget budget) {
  options.budget = budget;
  planned_level.reset();
  chosen = false;
  for (const auto& instance : instances) instance->result = {};
}

ModelState::Instance& ModelState::instance_for(const std::vector<Tensors>& inputs,
                                                   const ModelContents& contents) {
  drop_outdated();
  PlanKey key = key_of(inputs, contents);
  const auto known = std::find_if(instances.begin(), instances.end(),
                                  [&](const auto& instance) { return instance->key == key; });
  const bool measured = known != instances.end();
  if (ranks) all_measured(*ranks, measured, inputs.at(0).at(0).device());
  if (measured) return **known;
  auto instance = std::make_unique<Instance>(std::move(key));
  MeasureOptions measuring = options.measure;
  if (ranks) measuring.max_repeats = measuring.min_repeats;  // as many on all ranks
  if (!measuring.observer) measuring.observer = options.observer;
  const Loss loss = options.loss ? options.loss : default_loss;
  const Measuring alone;
  PreparedModel prepared = prepare(branches, tail, inputs, ranks.get());
  prepared.resident = options.resident;
  instance->planned = std::make_shared<PlannedModel>(std::move(prepared));
  MeasuredChain found = overheads.note(
      "measure", instances.empty() ? "it is the first time" : "these inputs are of another kind",
      [&] { return measure(instance->planned->model, inputs, loss, measuring); },
      [](const MeasuredChain& made) { return fmt::format("{} stages", made.chain.stages.size()); });
  instance->output_dropped = std::move(found.output_dropped);
  if (ranks) {
    const c10::Device device = instance->planned->model.device;
    agree_on_chain(*ranks, found.chain, device);
    if (instance->output_dropped) agree_on_chain(*ranks, *instance->output_dropped, device);
  }
  instance->spread = std::move(found.spread);
  instance->processor_percent = found.processor_percent;
  instance->stays = std::move(found.stays);
  instance->planned->memory = offload_memory.memory;
  instance->planned->set_measured(std::move(found));
  for (const at::Tensor& x : together(inputs)) {
    instance->example_shape.push_back(x.detach().to(at::kMeta));
  }
  instances.push_back(std::move(instance));
  return *instances.back();
}

void ModelState::open_offload_memory(const at::Tensor& input) {
  if (options.offload.to.empty() || is_auto(options.offload) || offload_memory.memory) return;
  offload_memory = open_second_memory(options.offload, input.device(), options.observer);
}

void ModelState::drop_outdated() {
  std::erase_if(instances, [&](const std::unique_ptr<Instance>& instance) {
    if (!instance->planned->outdated) return false;
    if (last == instance.get()) last = nullptr;
    return true;
  });
}

void ModelState::make_plan(const std::string& why, Instance& instance, int64_t offset,
                             Bytes inputs) {
  Chain& chain = instance.planned->chain;
  chain.fixed += Bytes(offset - instance.offset);
  instance.offset = offset;
  const Problem problem = instance.planned->problem();
  PlanOptions planning{.budget = options.budget,
                       .planner = options.planner,
                       .schedule_class =
                           branches.size() == 1 ? schedule_class_for(options.planner) : "",
                       .time_limit = options.time_limit,
                       .allow = has_ways() ? Exactness::kRounding : Exactness::kBitwise,
                       .observer = options.observer,
                       .machine = offload_memory.machine};
  if (options.budget.relative()) {
    if (!share_of) {
      share_of = {.peak = baseline(lowered(problem, order_of(problem))).peak, .inputs = inputs};
    }
    planning.budget = options.budget.resolve(share_of->peak);
  }
  if (ranks) {
    const int64_t room = planning.budget.resolve(Bytes(0)).count();
    const int64_t least =
        -largest(*ranks, -room, instance.planned->model.device, "the budget of its step");
    if (least < Budget().resolve(Bytes(0)).count()) planning.budget = Bytes(least);
  }
  instance.result = {};  // the old plan is for another level and must not outlive a failure
  PlanResult result = note_search(why, [&] {
    PlanResult found = is_auto(options.offload) && !chosen ? choose_memory(instance, planning)
                                                           : answer(instance, planning);
    instance.second_output.clear();
    if (options.measure.output_held) plan_second_outputs(instance, planning, found);
    return found;
  });
  ++report.plans;
  const Bytes level = chain.fixed;
  if (!result.plan) {
    const std::string op = describe_op(result.blocking_op, *instance.planned);
    const bool raise = result.termination != Termination::kInfeasible;
    throw error_of({.reason = explain_no_plan(result, op) +
                              (raise ? " Raise time_limit or the budget." : ""),
                    .result = result,
                    .live = chain.fixed + chain.input.bytes,
                    .level = level,
                    .foreseen = foreseen(),
                    .share_of = options.budget.relative() ? share_of : std::nullopt,
                    .inputs = inputs});
  }
  if (!planned_level) planned_level = level;
  instance.peak_if_dropped.reset();
  if (instance.output_dropped) {
    instance.output_dropped->fixed = chain.fixed;
    const Problem dropped =
        problem_of(instance.planned->model, *instance.output_dropped, instance.planned->inputs);
    const Graph graph = lowered(dropped, order_of(dropped, result.plan->actions));
    instance.peak_if_dropped = simulate(graph, result.plan->actions, planning.machine).peak;
  }
  instance.planned->set_plan(result.plan->actions, planning.machine);
  instance.result = std::move(result);
}

PlanResult ModelState::answer(Instance& instance, PlanOptions& planning) {
  const Problem problem = instance.planned->problem();
  PlanResult result = ask(problem, planning);
  if (!on_any_rank(ranks.get(), moves_any(result, instance.stays),
                   instance.planned->model.device)) {
    return result;
  }
  if (options.observer) {
    options.observer({"plan", 0, "moving nothing: a stage keeps memory that no operator made"});
  }
  planning.machine = {};
  planning.planner.clear();
  return ask(problem, planning);
}

// The buffers of the memory count among the fixed bytes.
void ModelState::use_memory(Instance& instance, OpenedMemory memory) {
  const Bytes more = memory.device_bytes - offload_memory.device_bytes;
  instance.planned->chain.fixed += more;
  instance.offset += more.count();
  offload_memory = std::move(memory);
  for (const auto& each : instances) each->planned->memory = offload_memory.memory;
}

PlanResult ModelState::choose_memory(Instance& instance, PlanOptions& planning) {
  use_memory(instance, {});
  const Nanos limit(planning.time_limit.count() / 2);
  PlanOptions alone = planning;
  alone.machine = {};
  alone.time_limit = limit;
  const Problem problem = instance.planned->problem();
  PlanResult without = ask(problem, alone);
  const auto leave = [&](const std::string& why) {
    report.offload_choice = why;
    planning = alone;
    chosen = true;
    return without;
  };
  const c10::Device device = instance.planned->model.device;
  const AutoMemory second = memory_for_auto(options.offload, device);
  if (second.options.to.empty()) return leave("nothing moves: " + second.why);
  const auto bound = [&] {
    return chain::plan(problem, {.planner = alone.planner,
                                 .schedule_class = alone.schedule_class,
                                 .time_limit = limit})
        .lower_bound;
  };
  PlanResult with;
  Graph graph;
  const auto plan_with = [&] {
    use_memory(instance, open_second_memory(second.options, device, options.observer));
    planning.machine = offload_memory.machine;
    planning.time_limit = limit;
    const Problem beside = instance.planned->problem();
    with = ask(beside, planning);
    graph = lowered(beside, order_of(beside));
    transfer::Comparison both{graph, without, with, offload_memory.machine};
    if (on_any_rank(ranks.get(), moves_any(with, instance.stays), device)) {
      both.objection = "a stage keeps memory that no operator made";
    }
    return both;
  };
  const Verdict verdict =
      weigh_moving({without, bound, plan_with, instance.spread, second.options.to});
  if (!verdict.moves) {
    use_memory(instance, {});
    return leave(verdict.why);
  }
  report.offload_choice = verdict.why;
  chosen = true;
  return with;
}

int64_t ModelState::replan_if_needed(Instance& instance, const std::vector<Tensors>& inputs,
                                       const ModelContents& contents) {
  const c10::Device device = instance.planned->model.device;
  Tensors resident = together(inputs);
  for (const at::Tensor& parameter : contents.parameters) {
    resident.push_back(parameter);
    resident.push_back(parameter.grad());
  }
  resident.insert(resident.end(), contents.buffers.begin(), contents.buffers.end());
  if (options.resident) {
    for (at::Tensor& tensor : options.resident()) resident.push_back(std::move(tensor));
  }
  const int64_t uncounted = uncounted_bytes(resident);
  const Chain& chain = instance.planned->chain;
  const int64_t counted = (chain.fixed + chain.input.bytes).count();
  const int64_t beside = uncounted + foreseen().count() - counted;
  int64_t drift = memory_count(device).live + beside;
  if (drift > 0) {  // a failed pass may have left memory in autograd's queue
    drain_backward_queue();
    drift = memory_count(device).live + beside;
  }
  if (ranks) drift = largest(*ranks, drift, device, "the beginning of its step");
  const bool planned = instance.result.plan.has_value();
  const bool too_little_room =
      planned && instance.result.plan->peak + Bytes(drift) > instance.result.budget;
  const bool much_more_room = planned && -drift > instance.result.budget.count() / 100;
  if (!planned || too_little_room || much_more_room) {
    std::string why = "there is no plan for these inputs and this budget";
    if (too_little_room) {
      why = "memory outside of the step grew by " + format_bytes(Bytes(drift));
    } else if (much_more_room) {
      why = "memory outside of the step shrank by " + format_bytes(Bytes(-drift));
    }
    make_plan(why, instance, instance.offset + drift, Bytes(storage_bytes(together(inputs))));
  }
  return uncounted;
}

void ModelState::check_inputs(const std::vector<Tensors>& inputs) const {
  if (inputs.size() != branches.size()) {
    throw InputError(fmt::format("the model has {} branches and was given inputs for {}",
                                 branches.size(), inputs.size()));
  }
  for (size_t b = 0; b < inputs.size(); ++b) {
    const std::string& branch = branches[b].name;
    if (inputs[b].empty()) {
      throw InputError(branch.empty() ? "the model was given no input"
                                      : "branch '" + branch + "' was given no input");
    }
    for (const at::Tensor& input : inputs[b]) {
      if (!input.defined()) throw InputError("the model was given an undefined tensor");
      require_plain(input, instances.empty() ? "the sample input" : "an input");
    }
  }
}

int64_t ModelState::ready(const std::vector<Tensors>& inputs, const ModelContents& contents) {
  telling([&] { check_inputs(inputs); });
  const auto require_plain_modules = [](const std::vector<Stage>& stages) {
    for (const Stage& stage : stages) {
      if (stage.module) require_plain(*stage.module, fmt::format(" of stage '{}'", stage.name));
    }
  };
  for (const StageBranch& branch : branches) require_plain_modules(branch.stages);
  require_plain_modules(tail);
  const at::Tensor& first = inputs[0][0];
  if (first.device().is_cpu()) install_cpu_allocator();
  find_ranks();
  if (ranks) ranks->require_sound();
  open_offload_memory(first);
  Instance& instance = telling([&]() -> Instance& { return instance_for(inputs, contents); });
  const int64_t uncounted = replan_if_needed(instance, inputs, contents);
  last = &instance;
  return uncounted;
}

Tensors ModelState::run_plain(std::vector<Tensors> inputs) const {
  check_inputs(inputs);
  Tensors outputs;
  for (size_t b = 0; b < branches.size(); ++b) {
    Tensors x = std::move(inputs[b]);
    for (const Stage& stage : branches[b].stages) x = stage.forward(x);
    outputs.insert(outputs.end(), x.begin(), x.end());
  }
  for (const Stage& stage : tail) outputs = stage.forward(outputs);
  return outputs;
}

}  // namespace reprise::runtime::internal::chain
