// A Pipeline asks for a training step on several devices: a chain is cut into parts that lie on
// different devices, and the batch into micro-batches that run through the parts one behind the
// other. All gradients are those of one step: they are summed over the micro-batches, in their
// order, before the weights change.
//
// A part is a run of consecutive stages of the chain on one device; PyTorch calls it a stage. A
// device runs one operation at a time. A link carries messages from one device to another, one
// after the other: activations forwards, gradients backwards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "reprise/model/chain.h"
#include "reprise/model/graph.h"
#include "reprise/model/plan.h"
#include "reprise/model/units.h"

namespace reprise {

// A WeightPart is the part of a stage's backward that computes weight gradients and nothing else.
// It may run later than the rest, because no other stage waits for it (Qi et al., "Zero bubble
// pipeline parallelism", ICLR 2024; the exact part of Unnikrishnan and Parhi, "LayerPipe", ICCAD
// 2021).
struct WeightPart {
  Cost cost;   // its time is in the times of the stage's backwards, too
  Bytes kept;  // what it reads: the bytes that stay from the rest of the backward until it runs
  bool consumes = false;  // gives the kept bytes back while it runs
  // If true, the weight part reads the input of the stage, too, in options that read it. The input
  // then stays until the weight part has run.
  bool reads_input = false;
  // The cost of the rest of the backward when the weight part runs apart. Without this cost, the rest
  // takes the time that the weight part leaves of the backward, and the backward's workspace.
  std::optional<Cost> rest = {};
  // The options of the stage whose backward can be split. Empty: all of them.
  std::vector<std::string> options = {};

  bool operator==(const WeightPart&) const = default;
};

// A PipelineStage has the facts that a pipeline adds to a stage of its chain.
struct PipelineStage {
  Bytes fixed;  // held during the whole step by the device of the stage: parameters, their state
  std::optional<WeightPart> weight_part = {};  // Without it, the backward is never split.
  // The bytes of the stage's output that the workspaces of its backwards count, because a backward
  // gives the output back only when it needs most. If the output stays for the weight part of the
  // stage behind, they count once.
  Bytes output_in_workspace = {};

  bool operator==(const PipelineStage&) const = default;
};

struct PipelineDevice {
  std::string name;                  // The name is unique and not empty.
  std::optional<Bytes> memory = {};  // Without it, the device has as much as the budget.
  int64_t time_percent = 100;        // Operations take this share of the chain's times.

  bool operator==(const PipelineDevice&) const = default;
};

// A Link carries messages of one direction. A message takes the latency and its bytes over the
// bandwidth.
struct Link {
  int32_t from = 0;  // positions in Pipeline::devices
  int32_t to = 0;
  int64_t bytes_per_second = 1;
  Nanos latency = {};

  bool operator==(const Link&) const = default;
};

struct Pipeline {
  std::string name;
  Chain chain;  // one micro-batch; its fixed bytes are held on every device
  std::vector<PipelineStage> stages = {};  // by stage of the chain; empty: none has anything to say
  int64_t micro_batches = 1;
  std::vector<PipelineDevice> devices;
  std::vector<Link> links = {};

  bool operator==(const Pipeline&) const = default;
};

inline constexpr size_t kMostDevices = 4096;
inline constexpr int64_t kMostMicroBatches = 65'536;
// The largest product of stages and micro-batches, so that a plan can be written out.
inline constexpr int64_t kMostStageRuns = 4'000'000;

// Throws InputError, with a JSON pointer, unless the chain is well formed, there is an entry of
// `stages` for each of its stages or none, no weight part takes longer than a backward of its stage
// or names an option that is not there, a backward in two is as long as in one, the numbers of
// devices and micro-batches are within the limits above, names of devices are unique, every link
// joins two different devices and is the only one of its direction, and all sums over the
// micro-batches fit 64 bits.
void validate(const Pipeline& pipeline);

// Returns the pipeline without the options that are less exact than `allowed`. Throws InputError if
// a stage loses every option.
Pipeline restrict_exactness(const Pipeline& pipeline, Exactness allowed);

// Returns the position of the link of this direction, or -1. The cost is O(links).
int32_t find_link(const Pipeline& pipeline, int32_t from, int32_t to);
Nanos message_time(const Link& link, Bytes bytes);
// Returns the time on this device of what takes `time` in the chain, rounded up.
Nanos time_on(const PipelineDevice& device, Nanos time);
// Returns the bytes that a stage holds during the whole step, without the chain's own.
Bytes stage_fixed(const Pipeline& pipeline, size_t stage);
const WeightPart* weight_part(const Pipeline& pipeline, size_t stage);  // null: it has none
// Returns the weight part of the backward of an option; null if that backward is not split.
const WeightPart* weight_part(const Pipeline& pipeline, size_t stage, const StageOption& option);
// Returns what the backward of an option costs without its weight part.
Cost rest_of_backward(const WeightPart& part, const StageOption& option);

// Returns a pipeline of `devices` equal devices in a row, with a link to and from each neighbour.
// The devices are "device0", "device1", and so on. Throws InputError unless the numbers are within
// the limits.
Pipeline pipeline_of_equal_devices(const Chain& chain, int64_t devices, int64_t micro_batches,
                                   const Link& link, std::optional<Bytes> memory = {});

enum class PipelineActionKind {
  kForward,         // runs a part's forward for a micro-batch, when its activation is there
  kBackward,        // runs its backward, when its gradient is there
  kInputGradient,   // the backward without the weight parts of those stages that have them
  kWeightGradient,  // those weight parts
  kReceive,         // makes room for a message to this part, from now on; it does not wait for it
  kSend,            // hands a message of this part to the link; it does not wait for it
  kWait,            // waits until the link has carried that message; its room may go then
};

enum class MessageKind { kActivation, kGradient };

// A PipelineAction is an action of a device. Sends, receives and waits name the part that sends or
// receives: part 0 sends activations to part 1, and part 1 sends gradients to part 0.
struct PipelineAction {
  PipelineActionKind kind = PipelineActionKind::kForward;
  int32_t part = 0;
  int32_t micro_batch = 0;
  MessageKind message = MessageKind::kActivation;  // of sends, receives and waits

  bool operator==(const PipelineAction&) const = default;
};

bool is_compute(PipelineActionKind kind);
// Says whether it is the backward or the input_gradient of a part, which reads its gradient.
bool is_backward(PipelineActionKind kind);

// A PartRun is a run of a stage: its forward with "fast" or an option, its backward with an option,
// or the loss with "default". Files and messages write it as "F3", "B3" and "loss" (name_of()).
struct PartRun {
  Phase phase = Phase::kForward;
  int32_t stage = 0;  // of the chain; 0 for the loss
  std::string variant;

  bool operator==(const PartRun&) const = default;
};

std::string name_of(const PartRun& run);

// A PartPlan says how a micro-batch runs through a part: what its forward runs, and what its
// backward runs, with all that is computed again. Values are freed after their last use, as
// with_frees() does it.
struct PartPlan {
  std::vector<PartRun> forward;
  std::vector<PartRun> backward;

  bool operator==(const PartPlan&) const = default;
};

struct PipelinePart {
  int32_t device = 0;       // position in PipelinePlan::devices
  int32_t first_stage = 0;  // The parts follow each other and have every stage of the chain.
  int32_t stages = 0;
  std::vector<PartPlan> plans;
  std::vector<int32_t> plan_of;  // by micro-batch: a position in `plans`

  bool operator==(const PipelinePart&) const = default;
};

struct DevicePlan {
  std::string name;
  Bytes budget;  // the limit that the plan was made for
  Bytes peak;    // a claim; verify() checks it
  std::vector<PipelineAction> order;

  bool operator==(const DevicePlan&) const = default;
};

// A PipelinePlan says which part lies where, how each micro-batch runs through each part, and what
// every device does in which order.
struct PipelinePlan {
  ProblemId problem;
  std::string planner;
  Termination termination = Termination::kFeasible;
  std::string schedule_class;
  Nanos time;         // a claim; verify() checks it
  Nanos lower_bound;  // No plan of the schedule class within the budgets is faster.
  Baseline baseline;  // of the plain pipeline; see plan/pipeline.h
  std::optional<SearchCost> search = {};
  std::vector<PipelinePart> parts;
  std::vector<DevicePlan> devices;  // by device of the problem

  bool operator==(const PipelinePlan&) const = default;
};

// A PipelinePlace is an action of a device.
struct PipelinePlace {
  int32_t device = 0;
  int64_t action = 0;  // position in its order

  bool operator==(const PipelinePlace&) const = default;
};

// A PipelineFlaw says why an action cannot begin.
struct PipelineFlaw {
  PipelinePlace place;
  std::string message;
};

// A PipelineProgram is the plan of a pipeline as a plan of a graph on a machine (model/plan.h). Each
// device is a memory that computes, with its budget as capacity; each link is a channel, and each
// message is a send and a receive. The graph is that of the chain for each micro-batch, with
// "m<micro-batch>/" before the ids, and with one gradient for each weight. What a device holds
// during the whole step is an input that lives there.
//
// The actions are in an order in which none waits for a later one. What a device does is the part of
// them that names its memory.
struct PipelineProgram {
  Graph graph;
  Machine machine;
  std::vector<BoundAction> actions;
  std::vector<PipelinePlace> places;  // by action: what it is a part of
  // If devices wait for each other: the first action of each that waits for ever. There are no
  // actions then.
  std::vector<PipelineFlaw> stuck = {};
  // The first action of each device that reads a value which is not there.
  std::vector<PipelineFlaw> dead = {};
};

inline constexpr int64_t kMostProgramRuns = 20'000'000;

// Returns the program of a plan. The parts, the orders and the messages must be complete, as verify()
// of check/pipeline.h finds them. Throws InputError, which names the action, for an op or a variant
// that is not there, and for more than kMostProgramRuns runs of a device. The cost is
// O(stages * options * micro-batches + runs).
PipelineProgram lower(const Pipeline& pipeline, const PipelinePlan& plan);

// Returns "forward", "backward", "input_gradient", "weight_gradient", "receive", "send", "wait".
const char* to_string(PipelineActionKind kind);
const char* to_string(MessageKind kind);  // "activation", "gradient"
// Returns a text such as "forward, part 1, micro-batch 3".
std::string describe(const PipelineAction& action);

}  // namespace reprise
