#include "reprise/check/pipeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "check/pipeline_structure.h"
#include "check/pipeline_times.h"
#include "reprise/check/simulate.h"
#include "reprise/model/errors.h"

namespace reprise {

using internal::check::PipelineStructure;
using internal::check::PipelineTimes;

namespace {

constexpr size_t kMostFaults = 10'000;

std::string place_name(const PipelinePlan& plan, int32_t device, int64_t action) {
  if (device < 0) return "plan: ";
  const DevicePlan& on = plan.devices[device];
  if (action < 0) return on.name + ": ";
  return fmt::format("{}, action {} ({}): ", on.name, action, describe(on.order[action]));
}

// The program of a device with its frees. Actions of the program belong to actions of the device.
struct DeviceActions {
  DeviceProgram program;
  std::vector<Action> actions;
  std::vector<int64_t> device_action;  // by action of the program
};

int64_t action_of_run(const DeviceProgram& program, size_t run) {
  return std::ranges::upper_bound(program.ends, run) - program.ends.begin();
}

// Finds the first run that reads what is not there; with_frees() must not see such a program.
std::optional<std::pair<size_t, ValueIndex>> first_dead_read(const DeviceProgram& program) {
  const Graph& graph = program.graph;
  std::vector<char> live(graph.values.size(), 0);
  for (size_t v = 0; v < graph.values.size(); ++v) {
    live[v] = graph.values[v].kind == ValueKind::kInput;
  }
  for (size_t r = 0; r < program.runs.size(); ++r) {
    const Run& run = program.runs[r];
    const Variant& variant = graph.ops[run.op].variants[run.variant];
    for (const ValueIndex value : variant.reads) {
      if (!live[value]) return std::pair{r, value};
    }
    for (const ValueIndex value : variant.consumes) live[value] = 0;
    for (const ValueIndex value : variant.writes) live[value] = 1;
  }
  return std::nullopt;
}

DeviceActions with_frees_of(DeviceProgram program) {
  DeviceActions result;
  result.actions = with_frees(program.graph, program.runs);
  size_t run = 0;
  int64_t last = -1;
  for (const Action& action : result.actions) {
    if (action.kind == ActionKind::kRun) last = action_of_run(program, run++);
    result.device_action.push_back(last);
  }
  result.program = std::move(program);
  return result;
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

DeviceTimeline device_timeline(const PipelinePlan& plan, size_t device,
                               const std::vector<Nanos>& times, std::vector<PipelineStep> steps,
                               const DeviceActions& actions) {
  DeviceTimeline timeline;
  timeline.steps = std::move(steps);
  for (const Nanos time : times) timeline.busy += time;
  if (!timeline.steps.empty()) timeline.end = timeline.steps.back().end;
  const Timeline bytes = simulate(actions.program.graph, actions.actions);
  timeline.peak = bytes.peak;
  if (bytes.peak_action >= 0) {
    timeline.peak_action = actions.device_action[bytes.peak_action];
  }
  timeline.in_flight = in_flight_of(plan, device);
  return timeline;
}

PipelineTimeline put_together(const PipelinePlan& plan, PipelineTimes times,
                              const std::vector<std::vector<Nanos>>& action_times,
                              const std::vector<DeviceActions>& programs) {
  PipelineTimeline timeline;
  timeline.messages = std::move(times.messages);
  for (size_t d = 0; d < programs.size(); ++d) {
    timeline.devices.push_back(
        device_timeline(plan, d, action_times[d], std::move(times.steps[d]), programs[d]));
    timeline.time = std::max(timeline.time, timeline.devices.back().end);
  }
  return timeline;
}

std::string deadlock_text(const PipelinePlan& plan, const PipelineTimes& times) {
  std::string text = "the devices wait for each other:";
  size_t shown = 0, more = 0;
  for (size_t d = 0; d < times.stuck.size(); ++d) {
    if (times.stuck[d] < 0) continue;
    if (shown == 8) {
      ++more;
      continue;
    }
    ++shown;
    text += fmt::format("\n  {}{}", place_name(plan, static_cast<int32_t>(d), times.stuck[d]),
                        times.why[d]);
  }
  if (more > 0) text += fmt::format("\n  and {} more", more);
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
    const PipelineStructure structure = internal::check::structure_of(
        pipeline_, plan_,
        [this](ViolationKind kind, int32_t device, int64_t action, const std::string& message) {
          fault(kind, device, action, message);
        });
    if (structural_) return std::move(violations_);
    for (size_t d = 0; d < plan_.devices.size(); ++d) {
      if (!read_program(d)) return std::move(violations_);
    }
    PipelineTimes times = internal::check::times_of(pipeline_, plan_, structure, times_);
    if (!times.stuck.empty()) {
      fault(ViolationKind::kDeadlock, -1, -1, deadlock_text(plan_, times));
      return std::move(violations_);
    }
    bool readable = true;
    for (size_t d = 0; d < programs_.size(); ++d) readable = judge_device(d) && readable;
    if (readable) check_claims_of(put_together(plan_, std::move(times), times_, actions_));
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

  bool read_program(size_t device) {
    try {
      programs_.push_back(lower(pipeline_, plan_, device));
    } catch (const InputError& error) {
      fault(ViolationKind::kUnknownId, static_cast<int32_t>(device), -1, error.what());
      return false;
    }
    times_.push_back(action_times(pipeline_, programs_.back(), device));
    return true;
  }

  // Returns false if the device's program cannot run.
  bool judge_device(size_t d) {
    const auto device = static_cast<int32_t>(d);
    if (const auto dead = first_dead_read(programs_[d])) {
      const auto& [run, value] = *dead;
      const Graph& graph = programs_[d].graph;
      fault(ViolationKind::kNotLive, device, action_of_run(programs_[d], run),
            fmt::format("{} reads {}, which is not live", graph.ops[programs_[d].runs[run].op].id,
                        graph.values[value].id));
      return false;
    }
    actions_.push_back(with_frees_of(std::move(programs_[d])));
    const Graph& graph = actions_.back().program.graph;
    Plan plan;  // what the verifier of graphs sees; nothing is claimed here
    plan.budget = plan_.devices[d].budget;
    plan.actions = actions_.back().actions;
    const Timeline timeline = simulate(graph, plan.actions);
    plan.peak = timeline.peak;
    plan.time = timeline.time;
    for (const Violation& found : verify(graph, plan, plan.budget)) {
      if (found.kind == ViolationKind::kFalseClaim) continue;
      const int64_t action = found.action < 0 ? -1 : actions_.back().device_action[found.action];
      fault(found.kind, device, action, found.message, found.over);
    }
    return true;
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
  std::vector<DeviceProgram> programs_;
  std::vector<std::vector<Nanos>> times_;
  std::vector<DeviceActions> actions_;
};

// Calls stuck(times) for a deadlock, and then returns nothing.
template <class Stuck>
std::optional<PipelineTimeline> timeline_of(const Pipeline& pipeline, const PipelinePlan& plan,
                                            const Stuck& stuck) {
  validate(pipeline);
  const PipelineStructure structure = internal::check::structure_of(
      pipeline, plan,
      [&](ViolationKind, int32_t device, int64_t action, const std::string& message) {
        throw InputError(place_name(plan, device, action) + message);
      });
  std::vector<DeviceProgram> lowered;
  std::vector<std::vector<Nanos>> times;
  for (size_t d = 0; d < plan.devices.size(); ++d) {
    lowered.push_back(lower(pipeline, plan, d));
    times.push_back(action_times(pipeline, lowered.back(), d));
  }
  PipelineTimes clock = internal::check::times_of(pipeline, plan, structure, times);
  if (!clock.stuck.empty()) {
    stuck(clock);
    return std::nullopt;
  }
  std::vector<DeviceActions> programs;
  for (size_t d = 0; d < lowered.size(); ++d) {
    DeviceProgram& program = lowered[d];
    if (const auto dead = first_dead_read(program)) {
      const int64_t action = action_of_run(program, dead->first);
      throw InputError(fmt::format("{}reads {}, which is not live",
                                   place_name(plan, static_cast<int32_t>(d), action),
                                   program.graph.values[dead->second].id));
    }
    programs.push_back(with_frees_of(std::move(program)));
  }
  return put_together(plan, std::move(clock), times, programs);
}

}  // namespace

PipelineTimeline simulate(const Pipeline& pipeline, const PipelinePlan& plan) {
  return *timeline_of(pipeline, plan, [&](const PipelineTimes& clock) {
    throw InputError(deadlock_text(plan, clock));
  });
}

std::optional<PipelineTimeline> simulate_unless_stuck(const Pipeline& pipeline,
                                                      const PipelinePlan& plan) {
  return timeline_of(pipeline, plan, [](const PipelineTimes&) {});
}

std::optional<Nanos> time_with(const Pipeline& pipeline, const PipelinePlan& plan,
                               const std::vector<std::vector<Nanos>>& times) {
  const PipelineStructure structure = internal::check::structure_of(
      pipeline, plan,
      [&](ViolationKind, int32_t device, int64_t action, const std::string& message) {
        throw InputError(place_name(plan, device, action) + message);
      });
  bool fits = times.size() == plan.devices.size();
  for (size_t d = 0; fits && d < times.size(); ++d) {
    fits = times[d].size() == plan.devices[d].order.size();
  }
  if (!fits) throw InputError("there is not one time for each action of each device");
  const PipelineTimes clock = internal::check::times_of(pipeline, plan, structure, times);
  if (!clock.stuck.empty()) return std::nullopt;
  Nanos time;
  for (const auto& steps : clock.steps) {
    if (!steps.empty()) time = std::max(time, steps.back().end);
  }
  return time;
}

std::vector<Violation> verify(const Pipeline& pipeline, const PipelinePlan& plan) {
  return PipelineJudge(pipeline, plan).judge(nullptr);
}

std::vector<Violation> verify(const Pipeline& pipeline, const PipelinePlan& plan,
                              const ProblemId& problem) {
  return PipelineJudge(pipeline, plan).judge(&problem);
}

}  // namespace reprise
