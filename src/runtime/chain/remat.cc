#include "reprise/runtime/remat.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <algorithm>

#include "runtime/device/plain_tensors.h"
#include "runtime/device/tensor_bytes.h"
#include "runtime/device/backward_queue.h"
#include "runtime/device/activity.h"
#include "runtime/chain/execute.h"
#include "runtime/chain/measure.h"
#include "runtime/chain/plan_key.h"
#include "reprise/check/simulate.h"
#include "reprise/model/errors.h"
#include "reprise/model/lower.h"
#include "reprise/report/text.h"
#include "reprise/runtime/allocator.h"
#include "runtime/modules/stage_modules.h"
#include "runtime/device/step_limits.h"
#include "runtime/device/step_log.h"

namespace reprise::runtime {

using internal::chain::MeasuredChain;
using internal::chain::ModelContents;
using internal::chain::PlanKey;
using internal::chain::PlannedModel;
using internal::chain::StageChanged;
using internal::chain::ChainStep;
using internal::chain::contents_of;
using internal::chain::describe;
using internal::chain::key_of;
using internal::chain::measure;
using internal::chain::prepare;
using internal::chain::within_stage;
using internal::device::Measuring;
using internal::device::StepLog;
using internal::device::StepMeter;
using internal::device::StepUnderWay;
using internal::device::drain_backward_queue;
using internal::device::limits;
using internal::device::make_node;
using internal::device::require_plain;
using internal::device::uncounted_bytes;
using internal::modules::register_stages;

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

// Whether the last stage makes its output a second time for a backward that reads it. Without a
// plan: whether the smallest budget of an infeasible answer may have to include a second output.
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

// A chain has one output at a time. If the caller holds the first output, it is live beside the
// second until the backward is over. After that it counts with the weight gradients. This chain
// asks for too much memory in plans that make only one output.
Chain with_second_output(Chain chain) {
  reprise::Stage& last = chain.stages.back();
  for (StageOption& option : last.options) option.forward.workspace += last.output;
  return chain;
}

}  // namespace

struct Remat::State {
  // The state for one kind of input.
  struct Instance {
    PlanKey key;
    std::shared_ptr<PlannedModel> planned;
    std::vector<TimeSpread> spread;
    int64_t processor_percent = 100;  // Profile::processor_percent
    Tensors example_shape;  // for describe(): geometry only
    int64_t offset = 0;     // live bytes beyond the chain's fixed + input when the plan was made
    PlanResult result;
    Bytes baseline_peak;
    bool second_output = false;  // the problem of `result` has room for a second output

    // The problem that `result` answers.
    Chain problem() const {
      return second_output ? with_second_output(planned->chain) : planned->chain;
    }

    explicit Instance(PlanKey k) : key(std::move(k)) {}
  };

  std::vector<Stage> stages;
  RematOptions options;
  std::vector<std::unique_ptr<Instance>> instances;
  Instance* last = nullptr;
  StepReport report;
  StepLog log;

  Instance& instance_for(const Tensors& inputs, const ModelContents& contents);
  void drop_outdated();
  void make_plan(Instance& instance, int64_t offset);
  // Makes a plan if there is none, or if the level of memory has changed too much. Returns the
  // bytes that are live but not counted by the allocator.
  int64_t replan_if_needed(Instance& instance, const Tensors& inputs, const ModelContents& contents);
  // Makes `last` the instance of these inputs, with a plan that fits. Returns the bytes that are
  // live but not counted by the allocator.
  int64_t ready(const Tensors& inputs, const ModelContents& contents);
  Tensors run_plain(Tensors x) const;
};

namespace {

// One step in flight: the autograd node of the whole model.
struct RematNode final : torch::autograd::Node {
  std::shared_ptr<Remat::State> state;
  std::unique_ptr<ChainStep> step;
  StepReport report;
  c10::Device device;
  Nanos planned_time;
  int64_t uncounted = 0;
  std::optional<int64_t> limit;    // in force until the step ends
  std::optional<StepMeter> meter;  // if the step is measured action by action
  std::optional<StepUnderWay> under_way{std::in_place};
  const uint64_t failures = cpu_failures();  // before the step
  bool over = false;                         // one of its halves failed, or it ran to its end

  RematNode(std::shared_ptr<Remat::State> s, std::unique_ptr<ChainStep> new_step, c10::Device d)
      : state(std::move(s)), step(std::move(new_step)), device(d) {}
  ~RematNode() override { finish(); }
  std::string name() const override { return "reprise::Remat"; }

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    if (at::GradMode::is_enabled()) {
      throw InputError(
          "double backward (create_graph=true) through a planned model is not "
          "supported; call backward() without it");
    }
    if (!step) {
      throw InputError("backward() ran through this step already; run forward again");
    }
    Tensors result;
    over = true;
    try {
      result = step->backward(std::move(gradients));
    } catch (...) {
      finish();
      throw;
    }
    note_measured();
    finish();
    report.steps = state->report.steps + 1;
    report.plans = state->report.plans;
    state->report = report;
    return result;
  }
  void release_variables() override { finish(); }

  void note_measured() {
    report.measured_peak = Bytes(memory_count(device).peak + uncounted);
    if (!meter) return;
    meter->finish();
    report.measured_peak = meter->peak() + Bytes(uncounted);
    state->log.add(step->program(), {report.predicted_peak, planned_time}, Bytes(uncounted),
                   std::move(*meter));
  }

  void finish() {
    if (!step) return;
    // The backward never ran, and a request for memory failed since the step began (in the loss,
    // say).
    if (!over && cpu_failures() != failures) step->undo();
    step.reset();
    if (limit) limits().remove(*limit);
    limit.reset();
    under_way.reset();
  }
};

}  // namespace

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
  instance->planned->set_measured(std::move(measured));
  for (const at::Tensor& x : inputs) instance->example_shape.push_back(x.detach().to(at::kMeta));
  instances.push_back(std::move(instance));
  return *instances.back();
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
                       .observer = options.observer};
  if (options.budget.relative()) {
    // A share refers to the first plan's baseline, so other memory that comes later does not raise
    // it.
    if (instance.baseline_peak == Bytes(0)) instance.baseline_peak = baseline(lower(chain)).peak;
    planning.budget = options.budget.resolve(instance.baseline_peak);
  }
  instance.result = {};  // the old plan is for another level and must not outlive a failure
  PlanResult result = reprise::plan(chain, planning);
  instance.second_output = options.measure.output_held && makes_second_output(chain, result);
  if (instance.second_output) {
    const Nanos bound = result.lower_bound;  // holds for all plans
    result = reprise::plan(instance.problem(), planning);
    result.lower_bound = bound;
  }
  ++report.plans;
  if (!result.plan) {
    const std::string message = explain_no_plan(result, describe_op(result.blocking_op, chain)) +
                                (result.termination == Termination::kInfeasible
                                     ? ""
                                     : " Raise time_limit or the budget.");
    throw BudgetError(message, result.budget.count(), (chain.fixed + chain.input.bytes).count(),
                      result.smallest_budget.value_or(Bytes(0)).count());
  }
  instance.planned->set_plan(lower(chain), result.plan->actions);
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
  Instance& instance = instance_for(inputs, contents);
  const int64_t uncounted = replan_if_needed(instance, inputs, contents);
  last = &instance;
  return uncounted;
}

Tensors Remat::State::run_plain(Tensors x) const {
  for (const Stage& stage : stages) x = stage.forward(x);
  return x;
}

Remat::Remat(std::vector<Stage> stages, RematOptions options)
    : torch::nn::Module("Remat"), state_(std::make_shared<State>()) {
  register_stages(*this, stages);
  state_->stages = std::move(stages);
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

Tensors Remat::forward(const Tensors& inputs) {
  // Within a stage of another planned model, the plan of that model decides.
  if (!at::GradMode::is_enabled() || within_stage()) return state_->run_plain(inputs);
  for (const at::Tensor& input : inputs) {
    if (!input.defined() || !input._fw_grad(0).defined()) continue;
    throw InputError(
        "an input has a forward gradient (torch.autograd.forward_ad), which a plan does not "
        "carry on; call the plain model");
  }
  try {
    return run_planned(inputs);
  } catch (const StageChanged& change) {
    if (!change.undone()) throw;
  }
  return run_planned(inputs);  // measured again
}

Tensors Remat::run_planned(const Tensors& inputs) {
  const ModelContents contents = contents_of(state_->stages);
  auto wants_grad = [](const at::Tensor& t) { return t.defined() && t.requires_grad(); };
  if (std::none_of(inputs.begin(), inputs.end(), wants_grad) &&
      std::none_of(contents.parameters.begin(), contents.parameters.end(), wants_grad)) {
    return state_->run_plain(inputs);
  }
  const int64_t uncounted = state_->ready(inputs, contents);
  State::Instance& instance = *state_->last;

  const PlannedModel& planned = *instance.planned;
  const c10::Device device = planned.model.device;
  const int64_t start = memory_count(device).live + uncounted;
  auto step = std::make_unique<ChainStep>(instance.planned, inputs);
  auto node = make_node<RematNode>(state_, std::move(step), device);
  node.node->uncounted = uncounted;
  node.node->report.budget = instance.result.budget;
  node.node->report.predicted_peak =
      instance.result.plan->peak + Bytes(start) - (planned.chain.fixed + planned.chain.input.bytes);
  node.node->planned_time = instance.result.plan->time;
  const bool limited =
      device.is_cpu() && state_->options.enforce && !state_->options.budget.unlimited();
  if (limited) {
    const int64_t limit = instance.result.budget.count() - uncounted;
    limits().add(limit);
    node.node->limit = limit;
  }
  reset_peak(device);
  if (state_->log.wanted()) {
    node.node->meter.emplace(device);
    node.node->step->measure_with(&*node.node->meter);
  }

  Tensors outputs;
  try {
    outputs = node.node->step->forward();
  } catch (...) {
    node.node->over = true;
    node.node->finish();
    throw;
  }
  torch::autograd::edge_list edges;
  for (const at::Tensor& input : inputs) {
    edges.push_back(input.requires_grad() ? torch::autograd::impl::gradient_edge(input)
                                          : torch::autograd::Edge());
  }
  for (const at::Tensor& parameter : planned.model.parameters) {
    edges.push_back(torch::autograd::impl::gradient_edge(parameter));
  }
  node.node->set_next_edges(std::move(edges));
  const auto& needs_grad = planned.model.stages.back().traits.output_needs_grad;
  for (size_t e = 0; e < outputs.size(); ++e) {
    outputs[e] = outputs[e].detach();
    if (needs_grad[e]) {
      torch::autograd::set_history(outputs[e], node.pointer);
    } else {
      node.node->add_input_metadata(outputs[e]);
    }
  }
  return outputs;
}

void Remat::plan_for(const Tensors& inputs) { state_->ready(inputs, contents_of(state_->stages)); }

void Remat::set_budget(Budget budget) {
  state_->options.budget = budget;
  for (const auto& instance : state_->instances) instance->result = {};
}

const PlanResult& Remat::plan() const {
  if (!state_->last) throw InputError("nothing is planned yet; call forward or plan_for first");
  return state_->last->result;
}

const Chain& Remat::chain() const {
  plan();
  return state_->last->planned->chain;
}

Profile Remat::profile() const {
  plan();
  const State::Instance& instance = *state_->last;
  return describe(instance.planned->model, instance.example_shape,
                  {.chain = instance.problem(),
                   .spread = instance.spread,
                   .processor_percent = instance.processor_percent});
}

StepReport Remat::last_step() const { return state_->report; }

void Remat::log_steps(int64_t steps) { state_->log.want(steps); }

std::optional<RunLog> Remat::run_log() const {
  const PlanResult& planned = plan();
  const PlannedModel& model = *state_->last->planned;
  return state_->log.run_log(*model.program, lower(state_->last->problem()), *planned.plan,
                             model.model.device);
}

std::shared_ptr<Remat> remat(std::vector<Stage> stages, const Tensors& sample,
                             RematOptions options) {
  auto model = std::make_shared<Remat>(std::move(stages), std::move(options));
  model->plan_for(sample);
  return model;
}

}  // namespace reprise::runtime
