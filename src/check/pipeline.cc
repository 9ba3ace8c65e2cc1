#include "reprise/check/pipeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "check/pipeline_structure.h"
#include "model/pipeline_order.h"
#include "reprise/check/simulate.h"
#include "reprise/model/errors.h"

namespace reprise {

namespace {

constexpr size_t kMostFaults = 10'000;

std::string place_name(const PipelinePlan& plan, int32_t device, int64_t action) {
  if (device < 0) return "plan: ";
  const DevicePlan& on = plan.devices[device];
  if (action < 0) return on.name + ": ";
  return fmt::format("{}, action {} ({}): ", on.name, action, describe(on.order[action]));
}

std::vector<int64_t> in_flight_of(const PipelinePlan& plan, size_t device) {
  std::vector<int64_t> now(plan.parts.size(), 0), most(plan.parts.size(), 0);
  for (const PipelineAction& action : plan.devices[device].order) {
    const auto part = static_cast<size_t>(action.part);
    if (action.kind == PipelineActionKind::kForward) most[part] = std::max(most[part], ++now[part]);
    if (action.kind == PipelineActionKind::kBackward) --now[part];
    if (action.kind == PipelineActionKind::kInputGradient) --now[part];
  }
  return most;
}

// Returns the timeline of the program of a plan, action by action of the devices.
PipelineTimeline timeline_of(const PipelinePlan& plan, const PipelineProgram& program) {
  const Timeline walked = simulate(program.graph, program.actions, program.machine);
  PipelineTimeline timeline{.devices = {}, .messages = {}, .time = walked.time};
  timeline.devices.resize(plan.devices.size());
  std::vector<Nanos> posted(program.graph.values.size());
  for (size_t a = 0; a < program.actions.size(); ++a) {
    const auto& [device, action] = program.places[a];
    const TimelineStep& step = walked.steps[a];
    const ActionKind kind = program.actions[a].kind;
    DeviceTimeline& of = timeline.devices[device];
    // Actions without runs take no time, and a compute action begins when its message is there.
    const auto next = static_cast<size_t>(action) + 1;
    const bool first = of.steps.size() < next;
    while (of.steps.size() < next) of.steps.push_back({of.end, of.end});
    of.end = of.steps.back().end = step.start + step.time;
    const bool reads = is_compute(plan.devices[device].order[action].kind);
    if (first) of.steps.back().start = reads && kind == ActionKind::kWait ? of.end : step.start;
    if (kind == ActionKind::kRun) of.busy += step.time;
    if (kind == ActionKind::kReceive) posted[program.actions[a].target] = step.start;
  }
  for (size_t d = 0; d < plan.devices.size(); ++d) {
    DeviceTimeline& of = timeline.devices[d];
    of.steps.resize(plan.devices[d].order.size(), {of.end, of.end});
    of.peak = walked.peaks[d];
    const int64_t peak = walked.peak_actions[d];
    if (peak >= 0) of.peak_action = program.places[peak].action;
    of.in_flight = in_flight_of(plan, d);
  }
  for (const Transfer& transfer : walked.transfers) {
    const auto& [device, action] = program.places[transfer.action];
    const PipelineAction& send = plan.devices[device].order[action];
    timeline.messages.push_back({.part = send.part,
                                 .micro_batch = send.micro_batch,
                                 .message = send.message,
                                 .link = transfer.channel,
                                 .bytes = program.graph.values[transfer.value].bytes,
                                 .sent = walked.steps[transfer.action].start,
                                 .posted = posted[transfer.value],
                                 .start = transfer.start,
                                 .end = transfer.end});
  }
  std::ranges::stable_sort(timeline.messages, {}, &MessageTransfer::link);
  return timeline;
}

std::string deadlock_text(const PipelinePlan& plan, const std::vector<PipelineFlaw>& stuck) {
  constexpr size_t kShown = 8;
  std::string text = "the devices wait for each other:";
  for (size_t k = 0; k < std::min(kShown, stuck.size()); ++k) {
    text +=
        "\n  " + place_name(plan, stuck[k].place.device, stuck[k].place.action) + stuck[k].message;
  }
  if (stuck.size() > kShown) text += fmt::format("\n  and {} more", stuck.size() - kShown);
  return text;
}

// A PipelineJudge collects the faults of a plan.
class PipelineJudge {
 public:
  PipelineJudge(const Pipeline& pipeline, const PipelinePlan& plan)
      : pipeline_(pipeline), plan_(plan) {}

  std::vector<Violation> judge(const ProblemId* problem) {
    validate(pipeline_);
    if (problem != nullptr) check_problem(*problem);
    internal::check::check_structure(
        pipeline_, plan_,
        [this](ViolationKind kind, int32_t device, int64_t action, const std::string& message) {
          fault(kind, device, action, message);
        });
    if (structural_) return std::move(violations_);
    try {
      judge_program(lower(pipeline_, plan_));
    } catch (const internal::UnknownInOrder& error) {
      fault(ViolationKind::kUnknownId, error.place.device, -1, error.what());
    }
    return std::move(violations_);
  }

 private:
  void fault(ViolationKind kind, int32_t device, int64_t action, const std::string& message,
             Bytes over = Bytes(0)) {
    structural_ = true;
    if (violations_.size() >= kMostFaults) return;
    const std::string id = device < 0 ? std::string() : plan_.devices[device].name;
    violations_.push_back({kind, action, id, over, place_name(plan_, device, action) + message});
  }

  void claim(const std::string& name, const std::string& message) {
    violations_.push_back({ViolationKind::kFalseClaim, -1, name, Bytes(0), "plan: " + message});
  }

  void check_problem(const ProblemId& problem) {
    const auto differs = [&](const char* what, const std::string& mine, const std::string& theirs) {
      if (mine == theirs) return;
      violations_.push_back(
          {ViolationKind::kOtherProblem, -1, what, Bytes(0),
           fmt::format("plan: is for another problem: its {} is \"{}\", not \"{}\"", what, mine,
                       theirs)});
    };
    differs("format", plan_.problem.format, problem.format);
    differs("name", plan_.problem.name, problem.name);
    if (!plan_.problem.sha256.empty() && !problem.sha256.empty()) {
      differs("sha256", plan_.problem.sha256, problem.sha256);
    }
  }

  void judge_program(const PipelineProgram& program) {
    if (!program.stuck.empty()) {
      return fault(ViolationKind::kDeadlock, -1, -1, deadlock_text(plan_, program.stuck));
    }
    for (const PipelineFlaw& dead : program.dead) {
      fault(ViolationKind::kNotLive, dead.place.device, dead.place.action, dead.message);
    }
    if (!program.dead.empty()) return;
    Plan plan;  // what the verifier of graphs sees; nothing is claimed here
    plan.budget = plan_.devices[0].budget;
    plan.actions = with_names(program.graph, program.actions, program.machine);
    std::vector<std::pair<PipelinePlace, Violation>> found;
    for (Violation& one : verify(program.graph, plan, plan.budget, program.machine)) {
      if (one.kind == ViolationKind::kFalseClaim) continue;
      const PipelinePlace place = place_of(program, one);
      // The wait of a compute action for its message holds what was held before.
      if (one.kind == ViolationKind::kOverBudget && place.action >= 0 &&
          program.actions[one.action].kind == ActionKind::kWait &&
          is_compute(plan_.devices[place.device].order[place.action].kind)) {
        continue;
      }
      found.emplace_back(place, std::move(one));
    }
    std::ranges::stable_sort(found, {}, [](const auto& one) { return one.first.device; });
    bool runs = true;
    for (const auto& [place, one] : found) {
      fault(one.kind, place.device, place.action, one.message, one.over);
      runs = runs && one.kind != ViolationKind::kUnderWay;
    }
    if (runs) check_claims_of(timeline_of(plan_, program));
  }

  // A fault of the whole plan belongs to the device where its value lives, or where its op runs.
  static PipelinePlace place_of(const PipelineProgram& program, const Violation& found) {
    if (found.action >= 0) return program.places[found.action];
    const Graph& graph = program.graph;
    std::string memory = found.id;
    if (const OpIndex op = find_op(graph, found.id); op >= 0) {
      memory = graph.ops[op].variants.front().at;
    } else if (const auto value = std::ranges::find(graph.values, found.id, &Value::id);
               value != graph.values.end()) {
      memory = value->home;
    }
    return {find_memory(program.machine, memory), -1};
  }

  void check_claims_of(const PipelineTimeline& timeline) {
    if (plan_.time != timeline.time) {
      claim("time", fmt::format("claims a time of {} ns, and takes {} ns", plan_.time.count(),
                                timeline.time.count()));
    }
    if (plan_.lower_bound > timeline.time) {
      claim("lower_bound", fmt::format("claims that no plan takes less than {} ns, and takes {} ns",
                                       plan_.lower_bound.count(), timeline.time.count()));
    }
    if (plan_.termination == Termination::kOptimal && plan_.lower_bound != timeline.time) {
      claim("termination", fmt::format("is called optimal, and its time of {} ns is not the lower "
                                       "bound of {} ns",
                                       timeline.time.count(), plan_.lower_bound.count()));
    }
    if (plan_.termination == Termination::kInfeasible ||
        plan_.termination == Termination::kTimeLimit) {
      claim("termination", fmt::format("is called {}, and is there", to_string(plan_.termination)));
    }
    for (size_t d = 0; d < plan_.devices.size(); ++d) {
      const DevicePlan& device = plan_.devices[d];
      if (device.peak != timeline.devices[d].peak) {
        claim(device.name,
              fmt::format("claims a peak of {} bytes on {}, and needs {}", device.peak.count(),
                          device.name, timeline.devices[d].peak.count()));
      }
    }
  }

  const Pipeline& pipeline_;
  const PipelinePlan& plan_;
  std::vector<Violation> violations_;
  bool structural_ = false;
};

// Returns the program of a plan that can be looked at; it may be stuck.
PipelineProgram program_of(const Pipeline& pipeline, const PipelinePlan& plan) {
  validate(pipeline);
  internal::check::check_structure(
      pipeline, plan,
      [&](ViolationKind, int32_t device, int64_t action, const std::string& message) {
        throw InputError(place_name(plan, device, action) + message);
      });
  PipelineProgram program = lower(pipeline, plan);
  if (program.dead.empty()) return program;
  const PipelineFlaw& dead = program.dead.front();
  throw InputError(place_name(plan, dead.place.device, dead.place.action) + dead.message);
}

}  // namespace

PipelineTimeline simulate(const Pipeline& pipeline, const PipelinePlan& plan) {
  const PipelineProgram program = program_of(pipeline, plan);
  if (!program.stuck.empty()) throw InputError(deadlock_text(plan, program.stuck));
  return timeline_of(plan, program);
}

std::optional<PipelineTimeline> simulate_unless_stuck(const Pipeline& pipeline,
                                                      const PipelinePlan& plan) {
  const PipelineProgram program = program_of(pipeline, plan);
  if (!program.stuck.empty()) return std::nullopt;
  return timeline_of(plan, program);
}

std::vector<Violation> verify(const Pipeline& pipeline, const PipelinePlan& plan) {
  return PipelineJudge(pipeline, plan).judge(nullptr);
}

std::vector<Violation> verify(const Pipeline& pipeline, const PipelinePlan& plan,
                              const ProblemId& problem) {
  return PipelineJudge(pipeline, plan).judge(&problem);
}

}  // namespace reprise
