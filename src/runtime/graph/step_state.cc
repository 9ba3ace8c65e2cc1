#include "runtime/graph/step_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "reprise/check/simulate.h"
#include "reprise/check/verify.h"
#include "reprise/model/errors.h"
#include "reprise/runtime/allocator.h"
#include "runtime/device/activity.h"
#include "runtime/device/backward_queue.h"
#include "runtime/device/heap_block.h"
#include "runtime/device/limit_scope.h"
#include "runtime/distributed/shared_plan.h"
#include "runtime/graph/agreement.h"
#include "runtime/graph/link_search.h"
#include "runtime/graph/no_plan.h"
#include "runtime/graph/words.h"
#include "runtime/lockstep/lockstep.h"
#include "runtime/transfer/choose.h"
#include "runtime/transfer/device_carrier.h"
#include "runtime/transfer/storage_memory.h"

namespace reprise::runtime::internal::graph {

using device::drain_backward_queue;
using device::give_back_idle_pages;
using device::LimitScope;
using device::Measuring;
using device::storage_bytes;
using device::uncounted_bytes;

namespace {

// Returns the options with a share of a peak as the number of bytes that it is.
StepPlanOptions in_bytes(StepPlanOptions options) {
  if (options.budget.relative() && options.share_of) {
    options.budget = options.budget.resolve(options.share_of->peak);
  }
  return options;
}

// If the memory of a run could not be placed, the next run searches a plan with more room, at most
// this many times. Each search has this part of the plan's time limit.
constexpr int kPlansAfterRuns = 4;

Bytes own_peak(const StepProgram& program, const Graph& graph, const Plan& plan,
               const Machine& machine) {
  if (program.own_workspaces.empty()) return plan.peak;
  Graph own = graph;
  for (const auto& [op, workspace] : program.own_workspaces) {
    own.ops[op].variants[0].workspace = workspace;
  }
  return simulate(own, plan.actions, machine).peak;
}

// Returns the peak of each memory of the machine, with the bytes of values as its device counts
// them. Those of the graph may be larger, because devices count in granules of other sizes.
std::vector<Bytes> own_peaks(const LoweredStep& lowered, const Graph& graph,
                             const step::Recording& recording, const Plan& plan,
                             const Machine& machine) {
  const auto bytes_of = [&](size_t v) {
    const int32_t position = lowered.step_value_of[v];
    if (position >= 0) return recording.values[position].bytes;
    if (v < lowered.input_bytes.size()) return lowered.input_bytes[v];
    return lowered.external_values.at(static_cast<ValueIndex>(v)).bytes;
  };
  std::vector<Bytes> peaks;
  for (const c10::Device device : lowered.devices) {
    Graph own = graph;
    for (size_t v = 0; v < own.values.size(); ++v) {
      own.values[v].bytes = Bytes(device::counted_bytes(bytes_of(v), device));
    }
    peaks.push_back(simulate(own, plan.actions, machine).peaks.at(peaks.size()));
  }
  return peaks;
}

}  // namespace

Outcome StepState::captured_for(const Tensors& sample) {
  if (homes) homes->fetch(HomedKind::kParameter);  // The function reads them.
  const std::vector<c10::Device>& others = options.other_devices;
  if (device_of(sample).is_cpu() ||
      std::any_of(others.begin(), others.end(), [](c10::Device d) { return d.is_cpu(); })) {
    install_cpu_allocator();
  }
  const Measuring measuring;
  const bool limited = !options.budget.unlimited() && !options.budget.relative();
  const LimitScope limit(
      limited ? std::optional(options.budget.resolve(Bytes(0)).count()) : std::nullopt,
      device_of(sample));
  Outcome made;
  const step::AsFollowed followed(options.follow);
  made.captured = capture_step(step, sample, options, ranks);
  if (options.lockstep == Lockstep::kAlways &&
      !lockstep::can_follow(made.captured->program.step.recording)) {
    throw InputError(
        "lockstep cannot compare every run of a step whose tensors lie on several devices");
  }
  made.number = ++captures;
  made.reads = step::host_reads(made.captured->program.step.recording);
  if (device_of(sample).is_cpu()) give_back_idle_pages();
  return made;
}

Outcome StepState::note_capture(const Tensors& sample, const std::string& why) {
  return overheads.note(
      "capture", why, [&] { return captured_for(sample); },
      [](const Outcome& made) {
        return fmt::format("{} operations", made.captured->program.lowered.graph.ops.size());
      });
}

void StepState::capture(const Tensors& sample, const std::string& why) {
  if (offload_memory.memory && device_of(sample).str() != device_name) {
    throw InputError("the plan moves values from " + device_name + ", and the inputs are on " +
                     device_of(sample).str() + " now: plan without `offload` first");
  }
  // If this fails, the step stays as it was captured before.
  outcomes.reset(note_capture(sample, why));
  captured().sample_bytes = storage_bytes(sample);
  updater().keep_shard();
  outcome().placed = place(placement, Bytes(0));
  use_captured_homes();
  std::vector<int64_t> level{level_without(sample).count()};
  // Shares of all ranks are of one peak.
  if (ranks) ranks->maxima(level, recording().device, "its bytes beside the step");
  outcome().placed.graph.fixed = Bytes(level[0]);
  device_name = device_of(sample).str();
  inputs_text.clear();
  for (const at::Tensor& input : sample) inputs_text.push_back(shape_text(input));
  if (!on_several_devices() || !plan_options.offload.machine.channels.empty()) return;
  offload_memory.machine = plan_options.offload.machine = captured().program.devices;
}

void StepState::capture_outcome(const Tensors& inputs) {
  put_memory_aside();
  const char* const why = "the step reads other numbers out of tensors";
  Outcome made;
  try {
    made = note_capture(
        inputs, options.follow ? "the step does something else: " + report.last_difference : why);
  } catch (...) {
    take_memory_up();
    throw;
  }
  outcomes.add(std::move(made), options.outcomes, /*beside=*/options.follow);
  renew_memory();
  captured().sample_bytes = storage_bytes(inputs);
  outcome().placed = place(placement, Bytes(0));
  use_captured_homes();
  outcome().placed.graph.fixed = level_without(inputs);
}

void StepState::drop_outcome() {
  memory.evacuate();
  outcomes.drop_front();
  take_memory_up();
}

// Returns the bytes that are live besides the step's inputs as the graph knows them. An input may
// be a part of a larger storage; the rest of that storage counts here.
Bytes StepState::level_without(const Tensors& inputs) const {
  Tensors resident = inputs;
  for (const at::Tensor& tensor : captured().maybe_uncounted) {
    if (!transfer::lacks_memory(tensor)) resident.push_back(tensor);
  }
  int64_t level = memory_count(recording().device).live + uncounted_bytes(resident);
  // A tensor with a home elsewhere is a value of the graph, wherever it lies.
  if (homes) level -= homes->bytes_here() + outcome().placed.staying().count();
  level -= dropped_gradients().count();
  const int64_t inputs_of_graph =
      captured().sample_bytes + captured().program.lowered.external_bytes.count();
  return Bytes(std::max<int64_t>(0, level - inputs_of_graph)) + outputs_beside() + foreseen();
}

// Returns the bytes of gradients that a function which is followed drops before the plan runs.
Bytes StepState::dropped_gradients() const {
  Bytes all;
  if (!options.follow) return all;
  std::set<const void*> storages;
  for (const step::LeafGradient& leaf : recording().gradients) {
    if (leaf.arrival != step::Arrival::kReplaced || leaf.input >= 0) continue;
    const at::Tensor& gradient = leaf.target.grad();
    if (!gradient.defined() || !gradient.has_storage()) continue;
    const c10::Storage& storage = gradient.storage();
    if (!storages.insert(storage.unsafeGetStorageImpl()).second) continue;
    all += Bytes(device::counted_bytes(static_cast<int64_t>(storage.nbytes()), gradient.device()));
  }
  return all;
}

Bytes StepState::outputs_beside() const {
  const c10::Device device = recording().device;
  if (device.is_cpu() || !arena(plan_options)) return Bytes(0);
  std::set<int32_t> values;
  for (const step::TensorRef& ref : recording().outputs) {
    if (ref.memory == step::Memory::kValue) values.insert(ref.index);
  }
  int64_t bytes = 0;
  for (const int32_t value : values) {
    bytes += device::counted_bytes(recording().values[value].bytes, device);
  }
  return Bytes(bytes);
}

void StepState::renew_memory(bool wanted) {
  graphed.reset();
  // The memory of an arena on a device stays as long as one block of it is held.
  if (!recording().device.is_cpu()) memory.evacuate();
  Bytes scratch;
  // The optimizer's state that a first run makes lies outside of the arena, as do the temporary
  // values of its making, so that run leaves them room. Values that move leave holes in a block, and
  // what fits into no hole would lie beside the block, above the budget.
  const bool moves = !plan_options.offload.to.empty();
  if (wanted && outcome().plan && !moves && !updater().makes_state()) {
    // Requests in the order of a run leave holes, in a block that a plan would fill.
    const Bytes need = step_bytes(graph(), outcome().plan->result);
    const int64_t bytes = std::min(room().count(), need.count() + need.count() / 8);
    scratch = Bytes(bytes - bytes % device::granule(recording().device));
  }
  memory.renew(wanted, recording().device, scratch);
}

void StepState::put_memory_aside() {
  graphed.reset();
  memory.rest();
  outcome().memory = std::exchange(memory, {});
}

void StepState::take_memory_up() {
  memory = std::exchange(outcome().memory, {});
  if (!memory.has_arena()) renew_memory();
}

// Takes the plan of another outcome for the outcome in front, as steps of other shapes have it. The plan
// of the larger one serves the smaller one. Returns false if no plan fits.
bool StepState::take_plan_of_another(Bytes fixed) {
  Graph here = graph();
  here.fixed = fixed;
  const Machine& machine = plan_options.offload.machine;
  std::optional<StepPlan> best;
  for (const Outcome& other : outcomes.all()) {
    if (!other.plan || other.number == outcome().number) continue;
    Plan plan = *other.plan->result.plan;
    if (other.placed.graph.ops.size() != here.ops.size() ||
        other.placed.graph.values.size() != here.values.size()) {
      continue;
    }
    try {
      const Timeline timeline = simulate(here, plan.actions, machine);
      plan.peak = timeline.peak;
      plan.time = timeline.time;
    } catch (const InputError&) {  // It is for another step.
      continue;
    }
    plan.baseline = baseline(here);
    plan.lower_bound = Nanos();
    plan.termination = Termination::kFeasible;
    if (best && plan.time >= best->result.plan->time) continue;
    if (!verify(here, plan, plan.budget, machine).empty()) continue;
    best = *other.plan;
    best->before_placement = plan.time;
    best->result.termination = plan.termination;
    best->result.baseline = plan.baseline;
    best->result.lower_bound = plan.lower_bound;
    best->result.plan = std::move(plan);
  }
  if (!best) return false;
  const StepPlan found =
      note_search("the step has other shapes", [&] { return *std::move(best); });
  adopt(found, place(placement, fixed));
  return true;
}

Graph StepState::graph_now() const {
  Graph here = graph();
  here.fixed += outcome().drift;
  return here;
}

void StepState::fix_share(StepPlanOptions& wanted, const Graph& problem) const {
  if (!wanted.share_of) wanted.share_of = plan_options.share_of;
  if (!wanted.budget.relative() || wanted.share_of) return;
  wanted.share_of = {.peak = baseline(problem).peak, .inputs = Bytes(captured().sample_bytes)};
}

StepPlan StepState::search(const StepPlanOptions& wanted, Graph& problem, Bytes slack,
                           bool together) const {
  if (!ranks || !together) {
    return search_step(problem, in_bytes(wanted), slack, arena_device(wanted));
  }
  const auto here = [&](const Graph& agreed_on, const StepPlanOptions& agreed) {
    return has_link()
               ? search_on_link(captured().program, agreed_on, agreed, slack, arena_device(agreed))
               : search_step(agreed_on, agreed, slack, arena_device(agreed));
  };
  return plan_together(*ranks, problem, in_bytes(wanted), here);
}

void StepState::adopt(StepPlan plan, PlacedStep next) {
  const StepProgram& program = captured().program;
  const Machine here = with_link(plan_options.offload.machine, program.link);
  if (has_link()) {
    plan.result =
        with_sums(program.lowered, next.graph, program.step.buckets, std::move(plan.result), here);
  }
  outcome().program = std::make_shared<const Program>(next.graph, plan.result.plan->actions, here);
  outcome().plan = std::move(plan);
  next.note_stays(outcome().plan->result.plan->actions);
  outcome().placed = std::move(next);
  placement = outcome().placed.placement;
  use_homes(outcome().placed);
  report.homed_state = report.homed_parameters = Bytes(0);
  for (const HomedValue& one : outcome().placed.homed) {
    if (one.stays) continue;
    (one.tensor.defined() ? report.homed_parameters : report.homed_state) += Bytes(one.bytes);
  }
  if (!planned_level) planned_level = graph().fixed;
  outcome().own_peak = own_peak(program, graph(), *outcome().plan->result.plan, here);
  use_devices();
  use_carriers(here);
  outcome().drift = Bytes(0);
  outcome().crowded = false;
  report.no_device_graph.clear();
  if (plan_options.device_graph) {
    report.no_device_graph = why_no_device_graph(captured().program, *outcome().program);
  }
  renew_memory();
  ++report.plans;
}

void StepState::use_devices() {
  if (!on_several_devices()) return;
  const Machine& machine = plan_options.offload.machine;
  const LoweredStep& lowered = captured().program.lowered;
  const std::vector<Bytes> peaks =
      own_peaks(lowered, graph(), recording(), *outcome().plan->result.plan,
                with_link(machine, captured().program.link));
  outcome().own_peak = peaks.at(0);
  outcome().other_devices.clear();
  for (size_t m = 1; m < peaks.size(); ++m) {
    outcome().other_devices.push_back(
        {.device = lowered.devices[m].str(), .predicted_peak = peaks[m]});
  }
  for (const Program::Entry& entry : outcome().program->entries()) {
    if (entry.kind != ActionKind::kRun || entry.run.memory == 0) continue;
    ++outcome().other_devices[static_cast<size_t>(entry.run.memory) - 1].runs;
  }
}

void StepState::use_carriers(const Machine& machine) {
  const LoweredStep& lowered = captured().program.lowered;
  transfer::Carriers& carriers = outcome().carriers;
  carriers.assign(machine.memories.size(), nullptr);
  const auto devices = carriers.begin() + static_cast<std::ptrdiff_t>(lowered.devices.size());
  if (on_several_devices()) {
    std::fill(carriers.begin(), devices,
              std::make_shared<transfer::DeviceCarrier>(
                  lowered.devices, plan_options.offload.machine, captured().replay));
  }
  if (has_link()) {
    std::fill(carriers.begin() + find_memory(machine, kRanks), carriers.end(),
              std::make_shared<SumCarrier>(sums_of(lowered, captured().program.step.buckets),
                                           captured().program.averager));
  }
}

transfer::OpenedMemory StepState::devices_machine(StepPlanOptions& wanted) const {
  if (!wanted.offload.to.empty() || wanted.offload_optimizer || wanted.offload_parameters) {
    throw InputError(
        "a step whose operations run on other devices, too (other_devices), moves values between "
        "them alone: leave offload, offload_optimizer and offload_parameters out");
  }
  const Machine& measured = captured().program.devices;
  Machine& machine = wanted.offload.machine;
  if (machine.channels.empty()) machine = measured;
  validate(machine);
  bool fits = machine.memories.size() == measured.memories.size();
  for (size_t m = 0; fits && m < machine.memories.size(); ++m) {
    const auto at = static_cast<int32_t>(m);
    fits = machine.memories[m].name == measured.memories[m].name && computes(machine, at) &&
           (m == 0 || (find_channel(machine, 0, at) >= 0 && find_channel(machine, at, 0) >= 0));
  }
  if (fits) return {.machine = machine, .memory = nullptr};
  std::string names;
  for (const auto& each : measured.memories) names += (names.empty() ? "" : ", ") + each.name;
  throw InputError("the machine of this step has the devices " + names +
                   " as its memories, in this order, all of them compute, and there is a channel "
                   "each way between "
                   "the first and each other one");
}

transfer::OpenedMemory StepState::memory_for(StepPlanOptions& wanted) const {
  OffloadOptions& asked = wanted.offload;
  // The machine of a plan of this step comes back. The link is not given but measured.
  if (ranks) asked.machine = without_link(std::move(asked.machine));
  if (on_several_devices()) return devices_machine(wanted);
  if (asked.to.empty()) {
    if (asked.machine.channels.empty()) return {};
    throw InputError(
        "a machine says how fast a memory behind the device is, and not where: name the memory, "
        "too "
        "(offload)");
  }
  OffloadOptions open = plan_options.offload;
  if (asked.machine.channels.empty()) open.machine = {};
  if (offload_memory.memory && asked == open) {
    asked.machine = offload_memory.machine;
    return offload_memory;
  }
  transfer::OpenedMemory opened =
      open_second_memory(asked, recording().device, wanted.observer);
  asked.machine = opened.machine;
  return opened;
}

PlanResult StepState::plan(StepPlanOptions wanted) {
  if (wanted.budget.unlimited()) wanted.budget = options.budget;
  const bool chooses = transfer::is_auto(wanted.offload) && !on_several_devices();
  const std::optional<Bytes> level = std::exchange(planned_level, std::nullopt);
  PlanResult result = chooses ? plan_choosing(std::move(wanted)) : plan_with(std::move(wanted));
  if (!result.plan) planned_level = level;
  if (result.plan && !chooses) report.offload_choice.clear();
  return result;
}

PlanResult StepState::plan_with(StepPlanOptions wanted) {
  require_homes(wanted);
  Bytes fixed = graph_now().fixed;
  if (wanted.device_graph) fixed += prepare_graph();
  transfer::OpenedMemory opened = memory_for(wanted);
  // The memory of the plan before goes when the new plan is there.
  fixed += opened.device_bytes - offload_memory.device_bytes;
  fixed += bytes_of(placement) - bytes_of(placement_of(wanted));
  PlanResult result =
      answer("plan() was called", wanted, opened, fixed, Bytes(0), /*together=*/true);
  if (!result.plan) return result;
  offload_memory = std::move(opened);
  outcome().placements = 0;
  outcomes.drop_other_plans();
  return result;
}

// Puts a new plan in force. If there is none, all stays as it is.
PlanResult StepState::answer(const std::string& why, StepPlanOptions wanted,
                             const transfer::OpenedMemory& there, Bytes fixed, Bytes slack,
                             bool together) {
  PlacedStep next = place(placement_of(wanted), fixed);
  fix_share(wanted, next.graph);
  StepPlan found =
      note_search(why, [&] { return search(wanted, next.graph, slack, together); });
  if (!found.result.plan) return found.result;
  next.note_stays(found.result.plan->actions);
  move_homes(next, there);
  plan_options = std::move(wanted);
  adopt(std::move(found), std::move(next));
  return outcome().plan->result;
}

void StepState::require(const PlanResult& result, Bytes live, const StepPlanOptions& wanted,
                        int64_t input_bytes) const {
  if (result.plan) return;
  const bool shared = wanted.budget.relative();
  throw error_of({.reason = why_no_plan(graph(), result, options.optimizer != nullptr) +
                            " Raise the budget, or time_limit, which may find a smaller plan.",
                  .result = result,
                  .live = live,
                  .level = live,
                  .foreseen = foreseen(),
                  .share_of = shared ? wanted.share_of : std::nullopt,
                  .inputs = Bytes(input_bytes)});
}

void StepState::require_plan(const Tensors& inputs, Bytes fixed, Bytes slack, bool together) {
  std::string why = outcome().captured == nullptr || !outcome().plan
                        ? "this is the first run of a capture"
                        : "the plan in force no longer fits";
  if (planned_level && fixed > *planned_level) {
    why = "memory outside of the step grew by " + format_bytes(fixed - *planned_level);
  }
  const PlanResult result = answer(why, plan_options, offload_memory, fixed, slack, together);
  require(result, fixed, plan_options, storage_bytes(inputs));
  outcome().drift = fixed - graph().fixed;  // The ranks have planned beside the largest one.
}

// Plans after a run the places of the runs that follow.
void StepState::place() {
  report.served = memory.served();
  report.fallbacks = memory.fallbacks();
  const bool placed = memory.plan_places(room());
  report.arena_height = memory.height();
  report.arena_live_bytes = memory.live_bytes();
  outcome().crowded = !placed && ++outcome().placements <= kPlansAfterRuns;
}

// Searches a plan with more room for its placement, if the places need more than the budget leaves.
// This happens before a run, so that the plan in force is always the one that ran last.
void StepState::find_room() {
  if (!std::exchange(outcome().crowded, false)) return;
  // Other plans have other holes, so the bytes that are missing now may not be enough next time.
  const Bytes more((memory.needed() - room()).count() * outcome().placements);
  const Graph here = graph_now();
  std::optional<StepPlan> smaller = overheads.note(
      "plan", "the arena needs more room than the budget leaves",
      [&] {
        return search_smaller(here, in_bytes(plan_options), *outcome().plan, more,
                              Nanos(plan_options.time_limit.count() / kPlansAfterRuns));
      },
      [](const std::optional<StepPlan>& made) {
        return made ? device::found_text(made->result) : std::string("no other plan");
      });
  if (smaller) adopt(std::move(*smaller), place(placement, here.fixed));
}

Bytes StepState::prepare_graph() {
  const c10::Device device = recording().device;
  if (!device::has_graphs(device)) return Bytes(0);
  const int64_t before = memory_count(device).live;
  device::prepare_graphs(device);
  const int64_t generator =
      2 * device::granule(device);  // its seed and offset, while there is a graph
  return Bytes(memory_count(device).live - before + captured().sample_bytes + generator);
}

// Makes sure of a plan for the memory that is live now.
void StepState::replan_if_needed(const Tensors& inputs) {
  if (plan_options.device_graph && report.no_device_graph.empty()) {
    prepare_graph();
    if (!graphed) {
      graphed = std::make_unique<GraphedStep>(inputs);
    }
  }
  Bytes fixed = level_without(inputs);
  if (fixed > graph().fixed + outcome().drift) {  // A backward that failed may have left memory.
    drain_backward_queue();
    fixed = level_without(inputs);
  }
  const Bytes slack = outcome().plan ? outcome().plan->slack : Bytes(0);
  bool needed = !outcome().plan || outcome().plan->result.plan->peak - graph().fixed + fixed >
                                       outcome().plan->result.budget;
  if (shares_work()) {
    needed = agree_on_run(*ranks, inputs, needed);
    if (needed) require_plan(inputs, fixed, slack, /*together=*/true);
    outcome().drift = fixed - graph().fixed;
    // Another plan, with more room or less, would have to be that of all ranks.
    if (memory.footprint() > room()) renew_memory(false);
    return;
  }
  if (options.follow && needed && take_plan_of_another(fixed)) return;
  if (needed) {
    // Plans of ranks may differ. The order of the sums is the same in all of them.
    require_plan(inputs, fixed, slack, /*together=*/!outcome().plan);
    return;
  }
  outcome().drift = fixed - graph().fixed;
  find_room();
  if (memory.footprint() <= room()) return;
  // The plan fits, but the arena no longer does.
  PlacedStep next = place(placement, fixed);
  StepPlan found =
      note_search("the arena no longer fits beside the memory outside of the step", [&] {
        return search(plan_options, next.graph, slack, /*together=*/false);
      });
  if (found.result.plan) {
    adopt(std::move(found), std::move(next));
  } else {
    renew_memory(false);
  }
}

}  // namespace reprise::runtime::internal::graph
