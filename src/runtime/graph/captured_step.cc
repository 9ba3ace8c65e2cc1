#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/version.h>

#include <utility>

#include "runtime/device/activity.h"
#include "runtime/device/limit_scope.h"
#include "runtime/device/tensor_bytes.h"
#include "runtime/device/backward_queue.h"
#include "runtime/graph/captured.h"
#include "runtime/graph/gradients.h"
#include "runtime/arena/step_memory.h"
#include "runtime/graph/step_search.h"
#include "reprise/check/simulate.h"
#include "reprise/check/verify.h"
#include "reprise/model/errors.h"
#include "reprise/report/text.h"
#include "reprise/runtime/allocator.h"
#include "reprise/runtime/capture.h"
#include "runtime/device/step_log.h"

namespace reprise::runtime {

using internal::arena::StepMemory;
using internal::device::LimitScope;
using internal::device::Measuring;
using internal::device::StepLog;
using internal::device::StepMeter;
using internal::device::StepUnderWay;
using internal::device::drain_backward_queue;
using internal::device::shape_text;
using internal::device::storage_bytes;
using internal::device::uncounted_bytes;
using internal::graph::Captured;
using internal::graph::Delivery;
using internal::graph::StepPlan;
using internal::graph::Updater;
using internal::graph::begin_gradients;
using internal::graph::capture_step;
using internal::graph::deliver;
using internal::graph::deliveries;
using internal::graph::device_of;
using internal::graph::room_of;
using internal::graph::search_smaller;
using internal::graph::search_step;
using internal::graph::set_flags;
using internal::state::RandomState;
using internal::step::Circumstances;
using internal::step::Recording;
using internal::step::ReplayScope;
using internal::step::TensorRef;

namespace {

// So many times a plan with more room for its placement is searched, after runs whose memory could
// not be placed.
constexpr int kPlansAfterRuns = 4;

// Throws in place of the exception that is being handled. The text says that updates cannot be
// taken back.
[[noreturn]] void rethrow_after_updates(const std::string& updated) {
  const auto text = [&](const char* reason) {
    return fmt::format(
        "the step failed when some parameters were updated already ({}); the others are as before. "
        "Load the model and the optimizer from where you saved them. The reason: {}",
        updated, reason);
  };
  try {
    throw;
  } catch (const BudgetError& error) {
    throw BudgetError(text(error.what()), error.budget(), error.live(), error.requested());
  } catch (const std::exception& error) {
    throw Error(text(error.what()));
  }
}

}  // namespace

struct CapturedStep::State {
  StepFunction step;
  CaptureOptions options;
  std::string device_name;
  std::vector<std::string> inputs_text;
  int64_t sample_bytes = 0;  // bytes of the inputs that the graph was captured with
  std::unique_ptr<Captured> captured;
  StepPlanOptions plan_options;
  std::optional<StepPlan> plan;  // the plan in force, for graph()
  // The last run found so many bytes live beside those that were live when the step was planned.
  Bytes drift;
  std::shared_ptr<const Program> program;
  StepMemory memory;
  int placements = 0;    // number of attempts to place since the user asked for the plan
  // If true, the last attempt failed, and the next run begins with another plan.
  bool crowded = false;
  CapturedStepReport report;
  StepLog log;

  Graph& graph() const { return captured->program.lowered.graph; }
  const Recording& recording() const { return captured->program.step.recording; }
  Updater& updater() const { return *captured->program.updater; }
  bool arena(const StepPlanOptions& wanted) const {
    return wanted.arena && recording().device.is_cpu();
  }

  void capture(const Tensors& sample);
  Bytes level_without(const Tensors& inputs) const;
  Graph graph_now() const;
  Bytes room() const { return room_of(graph(), plan->result, drift); }
  StepPlan search(const StepPlanOptions& wanted, Bytes fixed, Bytes slack) const;
  void adopt(StepPlan next, Bytes fixed);
  void require_plan(const StepPlanOptions& wanted, Bytes fixed, Bytes slack);
  void replan_if_needed(const Tensors& inputs);
  Tensors run(const Tensors& inputs);
  Tensors replay(const Tensors& inputs, StepMeter* meter);
  void place();
  void find_room();
};

void CapturedStep::State::capture(const Tensors& sample) {
  const c10::Device device = device_of(sample);
  if (device.is_cpu()) install_cpu_allocator();
  {
    const Measuring measuring;
    // If this fails, the step stays as it was captured before.
    captured = capture_step(step, sample, options);
  }
  plan.reset();
  program.reset();
  placements = 0;
  drift = Bytes(0);
  sample_bytes = storage_bytes(sample);
  graph().fixed = level_without(sample);
  device_name = device.str();
  inputs_text.clear();
  for (const at::Tensor& input : sample) inputs_text.push_back(shape_text(input));
}

// Returns the bytes that are live besides the step's inputs as the graph knows them. An input may
// be a part of a larger storage; the rest of that storage counts here.
Bytes CapturedStep::State::level_without(const Tensors& inputs) const {
  Tensors resident = captured->maybe_uncounted;
  resident.insert(resident.end(), inputs.begin(), inputs.end());
  const int64_t level = memory_count(recording().device).live + uncounted_bytes(resident);
  return Bytes(std::max<int64_t>(0, level - sample_bytes));
}

Graph CapturedStep::State::graph_now() const {
  Graph now = graph();
  now.fixed += drift;
  return now;
}

StepPlan CapturedStep::State::search(const StepPlanOptions& wanted, Bytes fixed,
                                     Bytes slack) const {
  Graph beside = graph();
  beside.fixed = fixed;
  return search_step(beside, wanted, slack, arena(wanted));
}

void CapturedStep::State::adopt(StepPlan next, Bytes fixed) {
  program = std::make_shared<const Program>(graph(), next.result.plan->actions);
  plan = std::move(next);
  graph().fixed = fixed;
  drift = Bytes(0);
  crowded = false;
  memory.renew(arena(plan_options));
  ++report.plans;
}

// Puts a new plan in force. Throws BudgetError if there is none; then all stays as it is.
void CapturedStep::State::require_plan(const StepPlanOptions& wanted, Bytes fixed, Bytes slack) {
  StepPlan found = search(wanted, fixed, slack);
  const PlanResult& result = found.result;
  if (!result.plan) {
    const std::string message =
        explain_no_plan(result) + " Raise the budget, or time_limit, which may find a smaller plan.";
    throw BudgetError(message, result.budget.count(), fixed.count(),
                      result.smallest_budget.value_or(Bytes(0)).count());
  }
  plan_options = wanted;
  adopt(std::move(found), fixed);
}

// Plans after a run the places of the runs that follow.
void CapturedStep::State::place() {
  report.served = memory.served();
  report.fallbacks = memory.fallbacks();
  const bool placed = memory.plan_places(room());
  report.arena_height = memory.height();
  report.arena_live_bytes = memory.live_bytes();
  crowded = !placed && ++placements <= kPlansAfterRuns;
}

// Searches a plan with more room for its placement, if the places need more than the budget leaves.
// This happens before a run, so that the plan in force is always the one that ran last.
void CapturedStep::State::find_room() {
  if (!std::exchange(crowded, false)) return;
  // Other plans have other holes, so the bytes that are missing now may not be enough next time.
  const Bytes more((memory.needed() - room()).count() * placements);
  const Graph now = graph_now();
  std::optional<StepPlan> smaller = search_smaller(
      now, plan_options, *plan, more, Nanos(plan_options.time_limit.count() / kPlansAfterRuns));
  if (smaller) adopt(std::move(*smaller), now.fixed);
}

// Makes sure of a plan for the memory that is live now.
void CapturedStep::State::replan_if_needed(const Tensors& inputs) {
  Bytes fixed = level_without(inputs);
  if (fixed > graph().fixed + drift) {  // A backward that failed may have left memory.
    drain_backward_queue();
    fixed = level_without(inputs);
  }
  const Bytes slack = plan ? plan->slack : Bytes(0);
  if (!plan || plan->result.plan->peak - graph().fixed + fixed > plan->result.budget) {
    require_plan(plan_options, fixed, slack);
    return;
  }
  drift = fixed - graph().fixed;
  find_room();
  if (memory.footprint() <= room()) return;
  // The plan fits, but the arena no longer does.
  StepPlan found = search(plan_options, fixed, slack);
  if (found.result.plan) {
    adopt(std::move(found), fixed);
  } else {
    memory.renew(false);
  }
}

Tensors CapturedStep::State::run(const Tensors& inputs) {
  const Circumstances now(inputs, options);
  std::string difference = captured->circumstances.difference(now);
  if (difference.empty()) difference = captured->residents.difference();
  if (!difference.empty()) {
    if (options.on_miss == OnMiss::kRefuse) {
      throw InputError("the step was captured for something else: " + difference);
    }
    capture(inputs);
  }
  begin_gradients(recording(), inputs);
  const StepUnderWay under_way;
  memory.evacuate();
  updater().begin();
  replan_if_needed(inputs);

  const c10::Device device = recording().device;
  const int64_t uncounted =
      level_without(inputs).count() + sample_bytes - memory_count(device).live;
  report.budget = plan->result.budget;
  report.predicted_peak = plan->result.plan->peak + drift;
  const bool limited = device.is_cpu() && plan_options.enforce && !plan_options.budget.unlimited();
  const RandomState random(device);
  captured->effects.save();
  Tensors outputs;
  std::vector<Delivery> gradients;
  try {
    {
      LimitScope limit(limited ? std::optional(report.budget.count() - uncounted) : std::nullopt);
      reset_peak(device);
      std::optional<StepMeter> meter;
      if (log.wanted()) meter.emplace(device);
      StepMemory::RunScope in_place(memory);
      outputs = replay(inputs, meter ? &*meter : nullptr);
      in_place.finish();
      report.measured_peak = Bytes(memory_count(device).peak + uncounted);
      if (meter) {
        meter->finish();
        report.measured_peak = meter->peak() + Bytes(uncounted);
        log.add(program, {report.predicted_peak, plan->result.plan->time}, Bytes(uncounted),
                std::move(*meter));
      }
    }
    gradients = deliveries(recording(), captured->program.step.updates,
                           captured->replay, inputs);
    for (const Delivery& next : gradients) memory.hand_out(next.gradient);
    memory.move_out(outputs);
    // A step that made the optimizer's state is not like those that follow.
    if (updater().made_state()) memory.renew(arena(plan_options));
    place();
  } catch (...) {
    captured->replay.clear();
    memory.renew(arena(plan_options));
    random.restore();
    captured->effects.restore();
    const std::string updated = updater().updated();
    if (!updated.empty()) rethrow_after_updates(updated);
    throw;
  }
  // From here on nothing fails.
  deliver(gradients);
  set_flags(recording(), inputs);
  captured->replay.clear();
  ++report.steps;
  return outputs;
}

Tensors CapturedStep::State::replay(const Tensors& inputs, StepMeter* meter) {
  ReplayScope scope;
  captured->replay.begin(inputs);
  if (meter != nullptr) {
    meter->execute(*program, 0, program->entries().size(), captured->replay);
  } else {
    execute(*program, captured->replay);
  }
  Tensors outputs;
  for (const TensorRef& ref : recording().outputs) {
    outputs.push_back(captured->replay.tensor(ref));
  }
  return outputs;
}

CapturedStep::CapturedStep(StepFunction step, Tensors sample, CaptureOptions options)
    : state_(std::make_unique<State>()) {
  state_->step = std::move(step);
  state_->options = std::move(options);
  state_->capture(sample);
}

CapturedStep::~CapturedStep() = default;
CapturedStep::CapturedStep(CapturedStep&&) noexcept = default;
CapturedStep& CapturedStep::operator=(CapturedStep&&) noexcept = default;

const PlanResult& CapturedStep::plan(const StepPlanOptions& options) {
  state_->require_plan(options, state_->graph_now().fixed, Bytes(0));
  state_->placements = 0;
  return state_->plan->result;
}

void CapturedStep::use(const Plan& plan, const StepPlanOptions& options) {
  const Graph& graph = state_->graph();
  const Baseline plain = baseline(graph);
  const Bytes budget = options.budget.resolve(plain.peak);
  const std::vector<Violation> violations = verify(graph, plan, budget);
  if (!violations.empty()) {
    std::string message = "the plan is not valid for this step:";
    for (const Violation& violation : violations) message += "\n  " + violation.message;
    throw InputError(message);
  }
  state_->plan_options = options;
  state_->placements = 0;
  StepPlan given{{.termination = plan.termination,
                  .plan = plan,
                  .planner = plan.planner,
                  .schedule_class = plan.schedule_class,
                  .budget = budget,
                  .lower_bound = plan.lower_bound,
                  .baseline = plain,
                  .smallest_budget = {},
                  .blocking_op = {},
                  .search = {}},
                 Bytes(0),
                 plan.time};
  state_->adopt(std::move(given), graph.fixed);
}

at::Tensor CapturedStep::run(const Tensors& inputs) {
  Tensors outputs = state_->run(inputs);
  return outputs.empty() ? at::Tensor() : std::move(outputs[0]);
}

Tensors CapturedStep::run_all(const Tensors& inputs) { return state_->run(inputs); }

const Graph& CapturedStep::graph() const { return state_->graph(); }

const PlanResult& CapturedStep::planned() const {
  if (!state_->plan) throw InputError("nothing was planned yet: call plan() or run()");
  return state_->plan->result;
}

CapturedStepReport CapturedStep::last_step() const { return state_->report; }

void CapturedStep::log_steps(int64_t steps) { state_->log.want(steps); }

std::optional<RunLog> CapturedStep::run_log() const {
  if (!state_->plan) return std::nullopt;
  const Plan& plan = *planned().plan;
  return state_->log.run_log(*state_->program, graph(), plan, state_->recording().device);
}

Profile CapturedStep::profile() const {
  Profile profile;
  profile.problem = graph();
  profile.device = state_->device_name;
  profile.versions = {{"reprise", REPRISE_VERSION}, {"torch", TORCH_VERSION}};
  profile.threads = at::get_num_threads();
  profile.inputs = state_->inputs_text;
  profile.signature = graph().name;
  for (const Op& op : graph().ops) profile.signature += "|" + op.id;
  profile.spread = state_->captured->program.costs.spread;
  profile.processor_percent = state_->captured->program.costs.processor_percent;
  return profile;
}

}  // namespace reprise::runtime
