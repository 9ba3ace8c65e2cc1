#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <torch/version.h>

#include <chrono>
#include <set>
#include <utility>

#include "activity.h"
#include "capture/captured_graph.h"
#include "capture/circumstances.h"
#include "capture/meter.h"
#include "capture/module_paths.h"
#include "capture/observe_step.h"
#include "capture/replay.h"
#include "capture/step_memory.h"
#include "capture/tensors.h"
#include "capture/updates.h"
#include "measure.h"
#include "prepare.h"
#include "reprise/check/simulate.h"
#include "reprise/check/verify.h"
#include "reprise/model/errors.h"
#include "reprise/pack/plan_blocks.h"
#include "reprise/runtime/allocator.h"
#include "reprise/runtime/capture.h"
#include "stage_runner.h"
#include "step_limits.h"
#include "step_log.h"

namespace reprise::runtime {
namespace {

// A limit of the CPU allocator for a scope, beside those of other steps in flight.
class LimitScope {
 public:
  explicit LimitScope(std::optional<int64_t> bytes) : bytes_(bytes) {
    if (bytes_) limits().add(*bytes_);
  }
  ~LimitScope() {
    if (bytes_) limits().remove(*bytes_);
  }
  LimitScope(const LimitScope&) = delete;
  LimitScope& operator=(const LimitScope&) = delete;

 private:
  std::optional<int64_t> bytes_;
};

// Further plans with less memory when one could not be placed within the budget.
constexpr int kPlacementAttempts = 2;
// What such a plan may take longer than the one before, which the heap serves: about what the arena saves.
constexpr double kPlacementPrice = 1.05;
// Of each placement (PackOptions::steps): some tenths of a second.
constexpr int64_t kPlacementSteps = 20'000'000;

// In place of the exception that is being handled: what was updated cannot be taken back.
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

// A gradient on its way to the tensor that it belongs to.
struct Delivery {
  at::Tensor target, gradient;
};

// As autograd does it: the first gradient becomes .grad, later ones are added to it in place.
void deliver(std::vector<Delivery>& gradients) {
  at::NoGradGuard no_grad;
  for (Delivery& next : gradients) {
    at::Tensor& grad = next.target.mutable_grad();
    if (grad.defined()) {
      grad.add_(next.gradient);
    } else {
      grad = std::move(next.gradient);
    }
  }
}

c10::Device device_of(const Tensors& inputs) {
  for (const at::Tensor& input : inputs) {
    if (input.defined()) return input.device();
  }
  throw InputError(
      "a captured step needs at least one input tensor, which says on what device it runs");
}

}  // namespace

// A recording with everything that is made of it. It stays where it is: the replay refers to it.
struct Captured {
  Circumstances circumstances;
  Recording recording;
  Works works;
  Updater updater;
  Alternatives alternatives;
  WorkCosts costs;
  CapturedGraph captured;
  Replay replay;
  ValueKeeper effects;  // what the step writes outside itself, to undo a step that fails
  Tensors resident;     // externals that the allocator may not have counted

  Captured(const StepFunction& step, const Tensors& sample, const CaptureOptions& options)
      : circumstances(sample, options),
        recording(observed(step, sample, options)),
        works(works_of(recording)),
        updater(options, recording, works),
        alternatives(find_alternatives(recording, works, options.alternatives)),
        costs(measure(sample, options)),
        captured(lower(recording, works, alternatives, updater.updates(), costs.costs, sample,
                       Bytes(0), options.measure.name)),
        replay(recording, works, captured),
        effects(written(recording)) {
    for (const External& external : recording.externals) {
      if (external.tensor.defined()) resident.push_back(external.tensor);
    }
  }

  static Recording observed(const StepFunction& step, const Tensors& sample,
                            const CaptureOptions& options) {
    Recording recording = observe_step(step, sample, device_of(sample));
    find_modules(recording, options.modules);
    return recording;
  }

  WorkCosts measure(const Tensors& sample, const CaptureOptions& options) {
    WorkCosts all =
        measure_works(recording, works, alternatives, updater.updates(), sample, options.measure);
    updater.measure(recording, options.measure, all);
    return all;
  }

  static std::vector<at::Tensor> written(const Recording& recording) {
    std::set<int32_t> all;
    for (const Call& call : recording.calls) all.insert(call.effects.begin(), call.effects.end());
    std::vector<at::Tensor> tensors;
    for (const int32_t e : all) {
      const c10::Storage& storage = recording.externals[static_cast<size_t>(e)].tensor.storage();
      tensors.push_back(tensor_on(
          storage,
          {.sizes = {static_cast<int64_t>(storage.nbytes())}, .strides = {1}, .dtype = at::kChar}));
    }
    return tensors;
  }
};

struct CapturedStep::State {
  StepFunction step;
  CaptureOptions options;
  std::string device_name;
  std::vector<std::string> inputs_text;
  std::unique_ptr<Captured> captured;
  StepPlanOptions plan_options;
  std::optional<PlanResult> result, refused;
  std::shared_ptr<const Program> program;
  StepMemory memory;
  Bytes slack;  // of the budget, that the placement needs above the live bytes
  int placements = 0;
  CapturedStepReport report;
  StepLog log;

  void capture(const Tensors& sample);
  Bytes level_without(const Tensors& inputs) const;
  Bytes inputs_bytes() const;
  bool make_plan(Bytes fixed);
  bool search(Bytes fixed, Nanos time_limit);
  bool search_smaller(Bytes fixed, Bytes more, Nanos time_limit);
  Bytes room() const;
  void require_plan(Bytes fixed);
  void set_plan(const Plan& plan);
  void settle(const Tensors& inputs);
  Tensors run(const Tensors& inputs);
  Tensors replay(const Tensors& inputs, StepMeter* meter);
  bool wants_arena() const;
  void settle_memory();
  std::vector<Delivery> deliveries(const Tensors& inputs);
};

void CapturedStep::State::capture(const Tensors& sample) {
  const c10::Device device = device_of(sample);
  if (device.is_cpu()) install_cpu_allocator();
  {
    const Measuring measuring;
    // What there is stays when this fails.
    captured = std::make_unique<Captured>(step, sample, options);
  }
  result.reset();
  program.reset();
  slack = Bytes(0);
  placements = 0;
  captured->captured.graph.fixed = level_without(sample);
  device_name = device.str();
  inputs_text.clear();
  for (const at::Tensor& input : sample) inputs_text.push_back(shape_text(input));
}

// Bytes that are live besides the step's inputs.
Bytes CapturedStep::State::level_without(const Tensors& inputs) const {
  Tensors resident = captured->resident;
  resident.insert(resident.end(), inputs.begin(), inputs.end());
  const int64_t level = memory_count(captured->recording.device).live + uncounted_bytes(resident);
  return Bytes(std::max<int64_t>(0, level - storage_bytes(inputs)));
}

Bytes CapturedStep::State::inputs_bytes() const {
  Bytes sum;
  for (const Value& value : captured->captured.graph.values) {
    if (value.kind == ValueKind::kInput) sum += value.bytes;
  }
  return sum;
}

// A plan whose memory can also be placed within the budget, if the search finds one; else one that the
// heap serves. False: there is none; then all stays as it is, but for `refused`.
bool CapturedStep::State::make_plan(Bytes fixed) {
  const bool placed = wants_arena() && !plan_options.budget.unlimited();
  // The time limit is for all searches together; each leaves half of it for those that may follow.
  const auto start = std::chrono::steady_clock::now();
  auto half_of_rest = [&] {
    const Nanos used(std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count());
    return Nanos(std::max<int64_t>(0, (plan_options.time_limit - used).count() / 2));
  };
  const Nanos first = placed ? half_of_rest() : plan_options.time_limit;
  if (!search(fixed, first)) {
    if (slack.count() == 0) return false;
    slack = Bytes(0);  // rather a plan that the heap serves than none
    if (!search(fixed, first)) return false;
  }
  if (!placed) return true;
  const Graph& graph = captured->captured.graph;
  for (int attempt = 0; attempt < kPlacementAttempts; ++attempt) {
    // The caller's inputs are blocks of the plan, too, but not of the arena.
    const Bytes most = room() + inputs_bytes();
    const Bytes height =
        pack(plan_blocks(graph, result->plan->actions), {.enough = most, .steps = kPlacementSteps})
            .height;
    if (height <= most) break;
    if (!search_smaller(fixed, height - most, half_of_rest())) break;
  }
  return true;
}

// A plan that leaves so much more of the budget to its placement. False: there is none, or it is much
// slower; then the plan stays.
bool CapturedStep::State::search_smaller(Bytes fixed, Bytes more, Nanos time_limit) {
  const PlanResult before = *result;
  const Bytes slack_before = std::exchange(slack, slack + more);
  bool found = false;
  try {
    found = search(fixed, time_limit);
  } catch (...) {
    slack = slack_before;
    throw;
  }
  const auto worth = static_cast<double>(before.plan->time.count()) * kPlacementPrice;
  if (found && static_cast<double>(result->plan->time.count()) <= worth) return true;
  slack = slack_before;
  if (found) {
    result = before;
    set_plan(*result->plan);
  }
  return false;
}

// What the budget leaves for the memory of the step itself.
Bytes CapturedStep::State::room() const {
  if (plan_options.budget.unlimited()) return result->budget;
  return result->budget - captured->captured.graph.fixed - inputs_bytes();
}

bool CapturedStep::State::search(Bytes fixed, Nanos time_limit) {
  Graph& graph = captured->captured.graph;
  const Bytes before = std::exchange(graph.fixed, fixed);
  const Budget budget =
      slack.count() == 0
          ? plan_options.budget
          : Budget(std::max(Bytes(0), plan_options.budget.resolve(baseline(graph).peak) - slack));
  PlanResult found;
  try {
    found = reprise::plan(graph, {.budget = budget,
                                  .planner = plan_options.planner,
                                  .time_limit = time_limit,
                                  .threads = plan_options.threads,
                                  .observer = plan_options.observer});
  } catch (...) {
    graph.fixed = before;  // of the plan that there is
    throw;
  }
  if (!found.plan) {
    graph.fixed = before;
    refused = std::move(found);
    return false;
  }
  ++report.plans;
  set_plan(*found.plan);
  found.budget += slack;
  result = std::move(found);
  return true;
}

void CapturedStep::State::require_plan(Bytes fixed) {
  if (make_plan(fixed)) return;
  const PlanResult& found = *refused;
  std::string message =
      fmt::format("no plan of this step fits {} ", format_bytes_exact(found.budget));
  if (found.smallest_budget) {
    message += fmt::format("(the smallest that one was found for is {}; {} needs the most)",
                           format_bytes_exact(*found.smallest_budget), found.blocking_op);
  } else {
    message += "within the time limit; raise time_limit or the budget";
  }
  throw BudgetError(message, found.budget.count(), fixed.count(),
                    found.smallest_budget.value_or(Bytes(0)).count());
}

void CapturedStep::State::set_plan(const Plan& plan) {
  program = std::make_shared<const Program>(captured->captured.graph, plan.actions);
  memory.renew(wants_arena());
}

bool CapturedStep::State::wants_arena() const {
  return plan_options.arena && captured->recording.device.is_cpu();
}

// After a run. Where the places need more than the budget leaves: a plan with room for what placement
// costs, if there is one.
void CapturedStep::State::settle_memory() {
  report.served = memory.served();
  report.fallbacks = memory.fallbacks();
  const bool placed = memory.settle(room());
  report.arena_height = memory.height();
  report.arena_live_bytes = memory.live_bytes();
  if (placed || ++placements > kPlacementAttempts) return;
  search_smaller(captured->captured.graph.fixed, memory.needed() - room(),
                 Nanos(plan_options.time_limit.count() / 2));
}

// A plan for the memory that is live now.
void CapturedStep::State::settle(const Tensors& inputs) {
  Bytes fixed = level_without(inputs);
  if (fixed > captured->captured.graph.fixed) {  // left by a pass that failed, perhaps
    drain_backward_queue();
    fixed = level_without(inputs);
  }
  if (!result) {
    require_plan(fixed);
    return;
  }
  Graph& graph = captured->captured.graph;
  const int64_t peak = result->plan->peak.count() - graph.fixed.count() + fixed.count();
  if (peak > result->budget.count()) {
    require_plan(fixed);
    return;
  }
  graph.fixed = fixed;
  result->plan->peak = Bytes(peak);
  // The plan fits, but no longer the block.
  if (fixed + inputs_bytes() + memory.footprint() > result->budget && !make_plan(fixed)) {
    memory.renew(false);
  }
}

Tensors CapturedStep::State::run(const Tensors& inputs) {
  const Circumstances now(inputs, options);
  const std::string difference = captured->circumstances.difference(now);
  if (!difference.empty()) {
    if (options.on_miss == OnMiss::kRefuse) {
      throw InputError("the step was captured for something else: " + difference);
    }
    capture(inputs);
  }
  const StepUnderWay under_way;
  memory.evacuate();
  captured->updater.begin();
  settle(inputs);

  const c10::Device device = captured->recording.device;
  const int64_t uncounted =
      level_without(inputs).count() + storage_bytes(inputs) - memory_count(device).live;
  report.budget = result->budget;
  report.predicted_peak = result->plan->peak;
  const bool limited = device.is_cpu() && plan_options.enforce && !plan_options.budget.unlimited();
  const RandomState random(device);
  captured->effects.save();
  Tensors outputs;
  std::vector<Delivery> gradients;
  try {
    {
      LimitScope limit(limited ? std::optional(result->budget.count() - uncounted) : std::nullopt);
      reset_peak(device);
      std::optional<StepMeter> meter;
      if (log.wanted()) meter.emplace(device);
      StepMemory::Run in_place(memory);
      outputs = replay(inputs, meter ? &*meter : nullptr);
      in_place.finish();
      report.measured_peak = Bytes(memory_count(device).peak + uncounted);
      if (meter) {
        meter->finish();
        report.measured_peak = meter->peak() + Bytes(uncounted);
        log.add(program, {report.predicted_peak, result->plan->time}, Bytes(uncounted),
                std::move(*meter));
      }
    }
    gradients = deliveries(inputs);
    // A step that made the optimizer's state is not like those that follow.
    if (captured->updater.made_state()) memory.renew(wants_arena());
    settle_memory();  // may plan, and ask the caller's observer
  } catch (...) {
    captured->replay.clear();
    memory.renew(wants_arena());
    random.restore();
    captured->effects.restore();
    const std::string updated = captured->updater.updated();
    if (!updated.empty()) rethrow_after_updates(updated);
    throw;
  }
  // From here on nothing fails.
  for (const at::Tensor& output : outputs) memory.hand_out(output);
  deliver(gradients);
  captured->replay.clear();
  ++report.steps;
  return outputs;
}

Tensors CapturedStep::State::replay(const Tensors& inputs, StepMeter* meter) {
  ReplayScope scope;
  captured->replay.begin(inputs);
  if (meter != nullptr) {
    meter->execute(*program, 0, program->steps().size(), captured->replay);
  } else {
    execute(*program, captured->replay);
  }
  Tensors outputs;
  for (const TensorRef& ref : captured->recording.outputs) {
    outputs.push_back(captured->replay.tensor(ref));
  }
  return outputs;
}

// What the step that just ran has for leaf tensors.
std::vector<Delivery> CapturedStep::State::deliveries(const Tensors& inputs) {
  at::NoGradGuard no_grad;
  std::vector<bool> used_up(captured->recording.gradients.size(), false);
  for (const Update& update : captured->updater.updates().each) used_up[update.leaf] = true;
  std::vector<Delivery> all;
  for (size_t l = 0; l < used_up.size(); ++l) {
    const LeafGradient& leaf = captured->recording.gradients[l];
    if (used_up[l] || leaf.gradient.memory == Memory::kNone) continue;
    Delivery& next = all.emplace_back();
    next.target = leaf.input < 0 ? leaf.target : inputs[static_cast<size_t>(leaf.input)];
    next.gradient = captured->replay.tensor(leaf.gradient);
    if (leaf.gradient.memory == Memory::kExternal) next.gradient = next.gradient.clone();
    memory.hand_out(next.gradient);
  }
  return all;
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
  Graph& graph = state_->captured->captured.graph;
  const StepPlanOptions before = std::exchange(state_->plan_options, options);
  const Bytes slack = std::exchange(state_->slack, Bytes(0)), fixed = graph.fixed;
  const std::optional<PlanResult> result = state_->result;
  const std::shared_ptr<const Program> program = state_->program;
  try {
    state_->require_plan(fixed);
  } catch (...) {
    // The plan that there was stays.
    state_->plan_options = before;
    state_->slack = slack;
    graph.fixed = fixed;
    state_->result = result;
    if (std::exchange(state_->program, program) != program) {
      state_->memory.renew(state_->wants_arena());
    }
    throw;
  }
  state_->placements = 0;
  return *state_->result;
}

void CapturedStep::use(const Plan& plan, const StepPlanOptions& options) {
  const Graph& graph = state_->captured->captured.graph;
  const Baseline plain = baseline(graph);
  const Bytes budget = options.budget.resolve(plain.peak);
  const std::vector<Violation> violations = verify(graph, plan, budget);
  if (!violations.empty()) {
    std::string message = "the plan is not valid for this step:";
    for (const Violation& violation : violations) message += "\n  " + violation.message;
    throw InputError(message);
  }
  state_->plan_options = options;
  state_->slack = Bytes(0);
  state_->placements = 0;
  state_->result = PlanResult{.termination = plan.termination,
                              .plan = plan,
                              .planner = plan.planner,
                              .schedule_class = plan.schedule_class,
                              .budget = budget,
                              .lower_bound = plan.lower_bound,
                              .baseline = plain,
                              .smallest_budget = {},
                              .blocking_op = {},
                              .search = {}};
  state_->set_plan(plan);
  ++state_->report.plans;
}

at::Tensor CapturedStep::run(const Tensors& inputs) {
  Tensors outputs = state_->run(inputs);
  return outputs.empty() ? at::Tensor() : std::move(outputs[0]);
}

Tensors CapturedStep::run_all(const Tensors& inputs) { return state_->run(inputs); }

const Graph& CapturedStep::graph() const { return state_->captured->captured.graph; }

const PlanResult& CapturedStep::planned() const {
  if (!state_->result) throw InputError("nothing was planned yet: call plan() or run()");
  return *state_->result;
}

CapturedStepReport CapturedStep::last_step() const { return state_->report; }

void CapturedStep::log_steps(int64_t steps) { state_->log.want(steps); }

std::optional<RunLog> CapturedStep::run_log() const {
  if (!state_->result) return std::nullopt;
  const Plan& plan = *planned().plan;
  return state_->log.run_log(*state_->program, graph(), plan, state_->captured->recording.device);
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
  profile.spread = state_->captured->costs.spread;
  return profile;
}

}  // namespace reprise::runtime
