// This is the state of a captured step between its runs, and how a run goes.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "reprise/model/errors.h"
#include "reprise/runtime/capture.h"
#include "runtime/arena/step_memory.h"
#include "runtime/device/device_heap.h"
#include "runtime/graph/graphed_step.h"
#include "runtime/graph/home_store.h"
#include "runtime/graph/link.h"
#include "runtime/graph/outcome.h"
#include "runtime/graph/step_search.h"
#include "runtime/session/session.h"
#include "runtime/step/gradients_aside.h"

namespace reprise::runtime::internal::graph {

class FollowedRun;

// A Learned is a recording that waits to be measured, with what it is for.
struct Learned {
  LearnedStep learned;
  step::Circumstances here;
  std::string difference;  // from the recordings before
  int64_t put_off = 0;     // number of runs at which it could not be measured
};

// A Planless is an outcome for which no plan was found. Its runs are those of online mode.
struct Planless {
  std::optional<BudgetError> error;  // of the last search, or of a replay
  int64_t pause = 0;                 // number of runs before the next search
  int64_t next_pause = 8;            // behind a search that finds nothing again
};

// A Learning says when a followed step is recorded (followed_step.cc).
struct Learning {
  step::Audit known;
  std::optional<StepPlanOptions> ahead;  // of a plan that was asked for before there is a recording
  Bytes plain_peak;                      // of the first run, if its budget is a share
  std::vector<Learned> waiting;          // each for other circumstances
  std::vector<step::Circumstances> met;  // once, and not recorded
  std::vector<step::Circumstances> roomy;  // Runs in them need neither a plan nor an eviction.
  std::map<int64_t, Planless> planless;    // by number of the outcome
  std::optional<step::Recording> left;     // of the last run, if it left all recordings
  std::map<uint64_t, int64_t> seen = {};   // runs without a plan, by the print of what they did
  bool estimates = true;                   // Costs may be estimated from those on other shapes.
  bool wanted = true;                      // The next run that may be recorded is.
  int64_t pause = 0;                       // number of runs before that
  int64_t next_pause = 0;                  // behind the next recording that brings nothing new
};

struct StepState : session::Session {
  StepFunction step;
  CaptureOptions options;
  std::string device_name;
  std::vector<std::string> inputs_text;
  Outcomes outcomes;
  int64_t captures = 0;
  // `offload.machine` is that of `offload_memory`.
  StepPlanOptions plan_options;
  // It is there if StepPlanOptions ask for offload_optimizer or offload_parameters.
  std::shared_ptr<HomeStore> homes;
  Placement placement;                   // of the plan in force
  arena::StepMemory memory;              // of the outcome in front
  std::unique_ptr<GraphedStep> graphed;  // null unless the plan in force runs as a device graph
  CapturedStepReport report;
  // The last run ended here, because no outcome that was captured reads this.
  std::string missed;
  std::vector<std::string> differences;       // that lockstep has found
  bool comparing = false;                     // whether the function runs beside the recording
  bool synchronized = true;                   // whether runs average gradients over the group
  CodecCheck codec_check = CodecCheck::kNone;
  Learning learning;  // of a followed step

  Outcome& outcome() { return outcomes.front(); }
  const Outcome& outcome() const { return outcomes.front(); }
  Captured& captured() const { return *outcome().captured; }
  // The step as the plan in force has it.
  const Graph& graph() const { return outcome().placed.graph; }
  const step::Recording& recording() const { return captured().program.step.recording; }
  // Whether operations may run on other devices than the recording's.
  bool on_several_devices() const { return !captured().program.lowered.devices.empty(); }
  // The machine of the plan in force: the memories that values move to, and the link.
  Machine machine() const { return with_link(offload_memory.machine, captured().program.link); }
  // Whether the ranks sum gradients over a link that was measured.
  bool has_link() const { return !captured().program.link.channels.empty(); }
  // Whether all ranks of the group have one plan and run it together.
  bool shares_work() const { return !options.share_work.empty(); }
  Updater& updater() const { return *captured().program.updater; }
  bool arena(const StepPlanOptions& wanted) const {
    return wanted.arena && !on_several_devices() && device::has_arenas(recording().device);
  }
  std::optional<c10::Device> arena_device(const StepPlanOptions& wanted) const {
    return arena(wanted) ? std::optional(recording().device) : std::nullopt;
  }
  void renew_memory(bool wanted);
  void renew_memory() { renew_memory(arena(plan_options)); }
  // Lets the memory of the outcome in front rest, because another one comes. Two outcomes never hold
  // an arena at the same time.
  void put_memory_aside();
  // Takes up the memory of the outcome that is in front now, or begins anew.
  void take_memory_up();

  // Capture the step for these inputs: as the only outcome, and as one more.
  void capture(const Tensors& sample, const std::string& why);
  void capture_outcome(const Tensors& inputs);
  // Drops the outcome in front. There are others.
  void drop_outcome();
  Outcome captured_for(const Tensors& sample);
  Outcome note_capture(const Tensors& sample, const std::string& why);

  // Planning.
  Bytes level_without(const Tensors& inputs) const;
  // Returns what the program will take outside of the step (CaptureOptions::foreseen).
  Bytes foreseen() const { return options.foreseen ? options.foreseen() : Bytes(0); }
  // Makes a share of the budget one of the peak that shares of this step are of. `problem` is the step
  // as the options place it.
  void fix_share(StepPlanOptions& wanted, const Graph& problem) const;
  // Returns the bytes that the step's outputs need beside an arena on a device, where the memory of
  // the arena stays when they leave it. On the CPU its pages change hands with them.
  bool can_run_again() const;
  void end_plainly(Bytes uncounted, const BudgetError& error);
  bool take_plan_of_another(Bytes fixed);
  Bytes dropped_gradients() const;
  Bytes outputs_beside() const;
  Graph graph_now() const;
  Bytes room() const { return room_of(graph(), outcome().plan->result, outcome().drift); }
  // Searches a plan without sums. If all ranks of a group call this `together`, they get one plan, and
  // `problem.fixed` is set to the largest one.
  StepPlan search(const StepPlanOptions& wanted, Graph& problem, Bytes slack, bool together) const;
  // Puts a plan of `next` in force, with its sums. Values move to the memory of plan_options.
  void adopt(StepPlan plan, PlacedStep next);
  // Notes what the plan in force does on other devices, if operations may run there.
  void use_devices();
  // Makes what carries the values of the plan in force on this machine.
  void use_carriers(const Machine& machine);
  // Returns the memory that the options name, and completes their machine. A memory that is open
  // stays open. Throws InputError if there can be none.
  transfer::OpenedMemory memory_for(StepPlanOptions& wanted) const;
  // The same for a step on several devices: they are the machine, and there is no memory behind
  // them.
  transfer::OpenedMemory devices_machine(StepPlanOptions& wanted) const;
  // Throws InputError if the options let something lie in another memory that cannot.
  void require_homes(const StepPlanOptions& wanted) const;
  // Returns the bytes of what may lie in another memory between the steps.
  Bytes bytes_of(const Placement& where) const;
  // Returns the step of the outcome in front in this placement, beside so many bytes.
  PlacedStep place(Placement where, Bytes fixed) const;
  // Lets parameters and state lie where this step has them, from the next run on. Throws InputError if something
  // cannot be brought back.
  void move_homes(const PlacedStep& next, const transfer::OpenedMemory& there);
  void use_homes(const PlacedStep& next);
  // Places the outcome in front as the plan's options ask for.
  void use_captured_homes();
  // Puts a new plan in force, with the memory of its options, if the answer has one.
  PlanResult plan(StepPlanOptions wanted);
  PlanResult plan_with(StepPlanOptions wanted);
  // Does the same where the options leave the memory to the runtime (transfer/choose.h).
  PlanResult plan_choosing(StepPlanOptions wanted);
  // `why` is the reason in words. `together` says that all ranks of the group plan now.
  PlanResult answer(const std::string& why, StepPlanOptions wanted,
                    const transfer::OpenedMemory& there, Bytes fixed, Bytes slack, bool together);
  void require_plan(const Tensors& inputs, Bytes fixed, Bytes slack, bool together);
  // Throws BudgetError for an answer without a plan. `live` are the bytes beside the step.
  void require(const PlanResult& result, Bytes live, const StepPlanOptions& wanted,
               int64_t input_bytes) const;
  void replan_if_needed(const Tensors& inputs);
  void place();
  void find_room();

  // Running. run_captured() returns nothing if no outcome reads what the step reads now, and
  // all is then as before.
  Tensors run(const Tensors& inputs);
  Tensors run_or_capture_outcome(const Tensors& inputs);
  std::optional<Tensors> run_captured(const Tensors& inputs);
  std::optional<Tensors> attempt(const Tensors& inputs, std::optional<step::ReadMiss>& miss);
  // Runs a followed step: beside a recording, or recorded, or as it is.
  Tensors run_followed(const Tensors& inputs);
  bool bring_fitting(const step::Circumstances& here);
  void fix_share_of_first_run();
  bool is_new(const step::Circumstances& here);
  bool is_roomy(const step::Circumstances& here) const;
  void make_waiting(const step::Circumstances& here, const Tensors& inputs);
  bool plan_followed(const Tensors& inputs);
  Tensors run_planless(const Tensors& inputs);
  LearnedStep run_and_learn(const StepFunction& function, const Tensors& inputs,
                            step::GradientsAside& gradients);
  Tensors learn(const Tensors& inputs, const step::Circumstances& here);
  void note_learned(LearnedStep learned, const step::Circumstances& here, const Tensors& inputs);
  bool make_learned(Learned next, const Tensors& inputs);
  Tensors run_as_it_is(const Tensors& inputs, const std::string& why);
  // Returns the options of a capture within the budget that is known by now, where online mode works.
  CaptureOptions within_budget(c10::Device device) const;
  void begin_replay(const Tensors& inputs);
  // Ends a run whose function has left all recordings.
  Tensors end_left(FollowedRun& followed, Bytes uncounted);
  // Runs the plan as a device graph, and records it first if need be. Returns false if it has to
  // run operation by operation; report.no_device_graph may say why.
  bool launch(const Tensors& inputs);
  Tensors outputs_now();
  // Makes the device ready to record graphs, and returns the bytes that a graph needs beside the
  // step: workspaces of the device's libraries, and the copies of the inputs.
  Bytes prepare_graph();
  // Returns whether the next run is compared with the function, and whether this is done before the
  // replay.
  bool is_compared() const;
  // Returns what differs from the capture. If a step of a group is captured again then, all ranks
  // call this together, and get the first difference by rank.
  std::string of_all_ranks(std::string difference) const;
  bool compares_first() const;
  // Runs the function beside the recording. Throws StepMiss if something differs.
  void compare(const Tensors& inputs);
};

}  // namespace reprise::runtime::internal::graph
