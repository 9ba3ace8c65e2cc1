#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/version.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "reprise/check/simulate.h"
#include "reprise/check/verify.h"
#include "reprise/model/errors.h"
#include "reprise/runtime/capture.h"
#include "reprise/runtime/random_mark.h"
#include "runtime/distributed/shared_plan.h"
#include "runtime/graph/agreement.h"
#include "runtime/graph/link.h"
#include "runtime/graph/shared_work.h"
#include "runtime/graph/step_state.h"
#include "runtime/lockstep/intercept.h"
#include "runtime/step/gradients_aside.h"
#include "runtime/transfer/choose.h"
#include "runtime/transfer/offload_carrier.h"

namespace reprise::runtime {

using internal::distributed::telling;
using internal::graph::HomedKind;
using internal::graph::is_sum;
using internal::graph::StepPlan;
using internal::graph::with_link;
using internal::step::describe;
using internal::step::HostRead;
using internal::transfer::is_auto;

struct CapturedStep::State : internal::graph::StepState {
  // Calls of several threads take turns. A call inside a call of the same thread goes on.
  mutable std::recursive_mutex turns;
};

namespace {

void require_shards(const CaptureOptions& options) {
  if (!options.shard_optimizer) return;
  if (options.group.empty()) {
    throw InputError(
        "the optimizer is sharded over the ranks of a process group (shard_optimizer), and the "
        "step has none: name the group, or leave shard_optimizer off");
  }
  if (!options.optimizer) {
    throw InputError(
        "shard_optimizer shards the state of an optimizer inside the step, and the step has none: "
        "give the optimizer, or leave shard_optimizer off");
  }
}

void require_followable(const CaptureOptions& options) {
  if (!internal::lockstep::can_intercept()) {
    throw InputError(
        "a step cannot be followed here, because another library has taken the dispatch key of "
        "LibTorch that it needs");
  }
  const char* with = !options.group.empty()           ? "a process group"
                     : !options.share_work.empty()    ? "share_work"
                     : !options.other_devices.empty() ? "other_devices"
                                                      : nullptr;
  if (with == nullptr) return;
  throw InputError(fmt::format(
      "a step with {} is not followed: what its function does on one rank or device alone would "
      "leave the others waiting. Leave `follow` off, or {} out",
      with, with));
}

void require_recording(const internal::graph::StepState& state) {
  if (!state.outcomes.empty()) return;
  throw InputError(
      "the step has no recording yet, because a followed step is recorded when it runs: run it, or "
      "ask for a plan by plan_ahead()");
}

// Returns the memory that "auto" stands for where there is a plan already.
OffloadOptions memory_of(const Plan& plan, const OffloadOptions& asked,
                         const internal::graph::StepState& state) {
  const bool moves = std::any_of(plan.actions.begin(), plan.actions.end(), [](const Action& a) {
    return a.kind == ActionKind::kCopy && !is_sum(a);
  });
  if (!moves) return {};
  const internal::transfer::AutoMemory found =
      internal::transfer::memory_for_auto(asked, state.recording().device);
  if (!found.options.to.empty()) return found.options;
  throw InputError("the plan moves values, and there is no memory for them: " + found.why);
}

// Values move between the device and one memory behind it. The caller's inputs, and parameters before
// their update, lie in memory that the step cannot give back.
void require_movable(const internal::graph::LoweredStep& lowered,
                     const internal::graph::PlacedStep& step, const Plan& plan,
                     const Machine& machine) {
  if (!lowered.devices.empty()) return;  // All memories are those of devices.
  const Program program(step.graph, plan.actions, machine);
  const std::vector<bool> moves = internal::transfer::moved_by(program, step.graph.values.size());
  for (size_t v = 0; v < moves.size(); ++v) {
    if (!moves[v] || step.homed_of(static_cast<ValueIndex>(v))) continue;
    if (lowered.step_value_of[v] >= 0) continue;
    throw InputError(fmt::format("the plan moves {}, which the step does not make and cannot move",
                                 step.graph.values[v].id));
  }
}

}  // namespace

CapturedStep::CapturedStep(StepFunction step, Tensors sample, CaptureOptions options)
    : state_(std::make_unique<State>()) {
  state_->step = std::move(step);
  state_->options = std::move(options);
  if (state_->options.lockstep == Lockstep::kAlways && !internal::lockstep::can_intercept()) {
    throw InputError(
        "lockstep cannot compare every run here, because another library has taken the dispatch "
        "key "
        "of LibTorch that it needs");
  }
  for (const WatchedValue& value : state_->options.watched) {
    if (value.read) continue;
    throw InputError(fmt::format(
        "the watched value \"{}\" has no function that reads it: make it with watch(), or give one",
        value.name));
  }
  state_->plan_options.budget = state_->options.budget;
  require_shards(state_->options);
  internal::graph::require_shared_work(state_->options);
  if (!state_->options.group.empty()) {
    state_->ranks = std::make_shared<internal::distributed::Ranks>(state_->options.group);
  } else if (state_->shares_work()) {
    state_->ranks = std::make_shared<internal::distributed::Ranks>(state_->options.share_work);
  }
  if (state_->options.follow) {
    require_followable(state_->options);
    return;  // The first run is recorded.
  }
  telling(state_->ranks.get(), [&] { state_->capture(sample, "it is the first one"); });
}

CapturedStep::~CapturedStep() = default;
CapturedStep::CapturedStep(CapturedStep&&) noexcept = default;
CapturedStep& CapturedStep::operator=(CapturedStep&&) noexcept = default;

void CapturedStep::plan_ahead(const StepPlanOptions& options) {
  const std::lock_guard turn(state_->turns);
  state_->learning.ahead = options;
}

bool CapturedStep::is_recorded() const { return !state_->outcomes.empty(); }

void CapturedStep::use_modules(std::vector<std::shared_ptr<torch::nn::Module>> modules) {
  const std::lock_guard turn(state_->turns);
  state_->options.modules = std::move(modules);
}

const PlanResult& CapturedStep::plan(const StepPlanOptions& options) {
  const std::lock_guard turn(state_->turns);
  require_recording(*state_);
  const PlanResult result = state_->plan(options);
  StepPlanOptions asked = options;
  if (asked.budget.unlimited()) asked.budget = state_->options.budget;
  if (!asked.share_of) asked.share_of = state_->plan_options.share_of;
  state_->require(result, state_->graph_now().fixed, asked, state_->captured().sample_bytes);
  return state_->outcome().plan->result;
}

PlanResult CapturedStep::try_plan(const StepPlanOptions& options) {
  const std::lock_guard turn(state_->turns);
  require_recording(*state_);
  return state_->plan(options);
}

void CapturedStep::use(const Plan& given, const StepPlanOptions& options) {
  const std::lock_guard turn(state_->turns);
  require_recording(*state_);
  const bool has_sums = std::any_of(given.actions.begin(), given.actions.end(), is_sum);
  StepPlanOptions wanted = options;
  if (is_auto(wanted.offload)) wanted.offload = memory_of(given, wanted.offload, *state_);
  state_->require_homes(wanted);
  internal::transfer::OpenedMemory opened = state_->memory_for(wanted);
  const Machine machine =
      has_sums ? with_link(opened.machine, state_->captured().program.link) : opened.machine;
  const internal::graph::Placement where = internal::graph::placement_of(wanted);
  const Bytes more = opened.device_bytes - state_->offload_memory.device_bytes +
                     state_->bytes_of(state_->placement) - state_->bytes_of(where);
  internal::graph::PlacedStep step = state_->place(where, state_->graph().fixed + more);
  Graph& graph = step.graph;
  if (wanted.device_graph) graph.fixed += state_->prepare_graph();
  const Baseline plain = baseline(graph);
  state_->fix_share(wanted, graph);
  const Bytes budget = wanted.budget.resolve(wanted.share_of ? wanted.share_of->peak : plain.peak);
  const std::vector<Violation> violations = verify(graph, given, budget, machine);
  std::string message;
  if (!violations.empty()) message = "the plan is not valid for this step:";
  for (const Violation& violation : violations) message += "\n  " + violation.message;
  if (state_->ranks) {
    internal::distributed::agree_on_plan(*state_->ranks, message);
    if (state_->shares_work()) internal::graph::agree_on_actions(*state_->ranks, given);
  } else if (!message.empty()) {
    throw InputError(message);
  }
  // The sums are the same in all plans of the step. They were judged, and come back.
  const Plan plan = internal::graph::without_sums(graph, given, machine);
  require_movable(state_->captured().program.lowered, step, plan, opened.machine);
  step.note_stays(plan.actions);
  state_->move_homes(step, opened);
  state_->plan_options = std::move(wanted);
  state_->offload_memory = std::move(opened);
  state_->outcome().placements = 0;
  state_->planned_level.reset();
  state_->outcomes.drop_other_plans();
  StepPlan next{{.termination = plan.termination,
                 .plan = plan,
                 .planner = plan.planner,
                 .schedule_class = plan.schedule_class,
                 .budget = budget,
                 .machine_sha256 = plan.machine_sha256,
                 .lower_bound = plan.lower_bound,
                 .baseline = plain,
                 .smallest_budget = {},
                 .blocking_op = {},
                 .search = {}},
                Bytes(0),
                plan.time};
  state_->adopt(std::move(next), std::move(step));
}

at::Tensor CapturedStep::run(const Tensors& inputs) {
  Tensors outputs = run_all(inputs);
  return outputs.empty() ? at::Tensor() : std::move(outputs[0]);
}

Tensors CapturedStep::run_all(const Tensors& inputs) {
  const std::lock_guard turn(state_->turns);
  return telling(state_->ranks.get(), [&] { return state_->run(inputs); });
}

std::optional<Tensors> CapturedStep::run_captured(const Tensors& inputs) {
  const std::lock_guard turn(state_->turns);
  if (state_->options.follow) return state_->run(inputs);
  return telling(state_->ranks.get(), [&] { return state_->run_captured(inputs); });
}

void CapturedStep::synchronize(bool averages) {
  if (state_->options.group.empty()) {
    throw InputError("the step was captured without a process group that averages gradients");
  }
  if (state_->options.optimizer && !averages) {
    throw InputError(
        "a step with an optimizer uses its gradients up, so it cannot add them over several runs: "
        "leave the optimizer outside, or run the step in parts along the batch (micro_batches)");
  }
  state_->synchronized = averages;
}

std::string CapturedStep::first_difference(const std::string& mine) {
  const std::lock_guard turn(state_->turns);
  return telling(state_->ranks.get(), [&] { return state_->of_all_ranks(mine); });
}

void CapturedStep::tell_failure(const std::string& reason) noexcept {
  if (state_ && state_->ranks) state_->ranks->tell(reason);
}

void CapturedStep::capture_outcome(const Tensors& inputs) {
  const std::lock_guard turn(state_->turns);
  state_->capture_outcome(inputs);
}

void CapturedStep::forget_outcome() {
  const std::lock_guard turn(state_->turns);
  if (state_->outcomes.all().size() > 1) state_->drop_outcome();
}

std::optional<SharedPeak> CapturedStep::shared_peak() const {
  return state_->plan_options.share_of;
}

void CapturedStep::fetch_optimizer_state() {
  const std::lock_guard turn(state_->turns);
  if (state_->homes) state_->homes->fetch(HomedKind::kState);
}

void CapturedStep::fetch_parameters() {
  const std::lock_guard turn(state_->turns);
  if (state_->homes) state_->homes->fetch(HomedKind::kParameter);
}

std::vector<int64_t> CapturedStep::outcomes() const {
  std::vector<int64_t> numbers;
  for (const auto& outcome : state_->outcomes.all()) numbers.push_back(outcome.number);
  return numbers;
}

std::vector<std::string> CapturedStep::guards() const {
  require_recording(*state_);
  return state_->captured().circumstances.names();
}

std::vector<std::string> CapturedStep::host_reads() const {
  require_recording(*state_);
  std::vector<std::string> texts;
  for (const HostRead& read : state_->outcome().reads) texts.push_back(describe(read));
  return texts;
}

const std::vector<std::string>& CapturedStep::refusals() const {
  require_recording(*state_);
  return state_->captured().program.step.refusals;
}

const std::vector<std::string>& CapturedStep::differences() const { return state_->differences; }

bool CapturedStep::comparing() const { return state_->comparing; }

CacheUse CapturedStep::cache_use() const {
  require_recording(*state_);
  return state_->captured().program.cache;
}

const Graph& CapturedStep::graph() const {
  require_recording(*state_);
  return state_->graph();
}

const PlanResult& CapturedStep::planned() const {
  require_recording(*state_);
  if (!state_->outcome().plan) throw InputError("nothing was planned yet: call plan() or run()");
  return state_->outcome().plan->result;
}

Machine CapturedStep::machine() const {
  require_recording(*state_);
  return state_->machine();
}

CapturedStepReport CapturedStep::last_step() const {
  const std::lock_guard turn(state_->turns);
  CapturedStepReport report = state_->report;
  report.overheads = state_->overheads.last();
  return report;
}

at::Tensor host_copy(const at::Tensor& tensor) { return internal::step::host_copy(tensor); }

void leave_recording(const std::string& reason) { internal::lockstep::leave_recording(reason); }

void touch_gradient(const at::Tensor& leaf) {
  if (!internal::lockstep::touch_gradient(leaf)) internal::step::touch_gradient(leaf);
}

int64_t mark_random_state() { return internal::lockstep::mark_random_state(); }

void return_to_random_state(int64_t mark) { internal::lockstep::return_to_random_state(mark); }

int64_t CapturedStep::overhead_count() const { return state_->overheads.count(); }

void CapturedStep::check_codecs(CodecCheck check) { state_->codec_check = check; }

std::vector<ApproximateValue> CapturedStep::approximate_values() const {
  const internal::graph::StepProgram& program = state_->captured().program;
  std::map<int32_t, const internal::rewrite::CodecUse*> by_decode;
  for (const auto& use : program.step.codecs) by_decode[use->decode] = use.get();
  std::vector<ApproximateValue> all;
  std::set<OpIndex> seen;
  for (const BoundAction& action : reprise::bind(graph(), planned().plan->actions, machine())) {
    if (action.kind != ActionKind::kRun || !seen.insert(action.target).second) continue;
    const auto op = static_cast<size_t>(action.target);
    const auto found = by_decode.find(program.lowered.works[op][action.variant]);
    if (found == by_decode.end()) continue;
    const internal::rewrite::CodecUse& use = *found->second;
    all.push_back({.op = graph().ops[op].id,
                   .alternative = use.alternative,
                   .plain = Bytes(use.plain_bytes),
                   .kept = Bytes(use.kept_bytes),
                   .bound = use.stated.bound,
                   .largest = use.stated.largest,
                   .error = use.error});
  }
  return all;
}

void CapturedStep::log_steps(int64_t steps) { state_->log.want(steps); }

std::optional<RunLog> CapturedStep::run_log() const {
  if (!state_->outcome().plan) return std::nullopt;
  const Plan& plan = *state_->outcome().plan->result.plan;
  return state_->log.run_log(*state_->outcome().program, graph(), plan, state_->recording().device,
                             machine());
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
  profile.spread = state_->captured().program.costs.spread;
  profile.processor_percent = state_->captured().program.costs.processor_percent;
  return profile;
}

}  // namespace reprise::runtime
