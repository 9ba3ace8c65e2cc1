// Writes the plan of a pipeline out as a plan of a graph on a machine.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>

#include "model/pipeline_order.h"
#include "model/pipeline_values.h"
#include "model/place_map.h"
#include "model/touched.h"
#include "reprise/model/errors.h"
#include "reprise/model/lower.h"
#include "reprise/model/pipeline.h"

namespace reprise {

using internal::begin_of;
using internal::end_of;
using internal::home_name;
using internal::PipelineMessages;
using internal::PipelineValues;
using internal::model::PlaceMap;

namespace {

// A StageRun is a PartRun that was looked up.
struct StageRun {
  Phase phase = Phase::kForward;
  size_t stage = 0;     // of the chain
  int32_t variant = 0;  // of the forward: 0 is "fast", 1 + o is option o; of a backward: option o
};

// PartRuns are the runs of a part's plan that were looked up.
struct PartRuns {
  std::optional<std::vector<StageRun>> forward = {}, backward = {};
};

// Looks up the runs of the plans that the actions take. They may come from anywhere.
class RunReader {
 public:
  RunReader(const Pipeline& pipeline, const PipelinePlan& plan) : pipeline_(pipeline), plan_(plan) {
    for (const PipelinePart& part : plan.parts) runs_.emplace_back(part.plans.size());
    for (place_.device = 0; place_.device < static_cast<int32_t>(plan.devices.size());
         ++place_.device) {
      place_.action = 0;
      for (const PipelineAction& action : plan.devices[place_.device].order) {
        if (is_compute(action.kind)) read(action);
        ++place_.action;
      }
    }
  }

  const PartRuns& runs(const PipelineAction& action) const {
    return runs_[action.part][plan_.parts[action.part].plan_of[action.micro_batch]];
  }

 private:
  [[noreturn]] void fail(const std::string& message) const {
    throw internal::UnknownInOrder(place_, message);
  }

  void read(const PipelineAction& action) {
    const PipelinePart& part = plan_.parts[action.part];
    const int32_t way = part.plan_of[action.micro_batch];
    PartRuns& runs = runs_[action.part][way];
    const bool forward = action.kind == PipelineActionKind::kForward;
    std::optional<std::vector<StageRun>>& found = forward ? runs.forward : runs.backward;
    if (found) return;
    found.emplace();
    for (const PartRun& run : forward ? part.plans[way].forward : part.plans[way].backward) {
      if (forward && run.phase != Phase::kForward) {
        fail(fmt::format("the forward of a part cannot run \"{}\"", name_of(run)));
      }
      found->push_back(look_up(part, run));
    }
  }

  StageRun look_up(const PipelinePart& part, const PartRun& run) const {
    const auto stage = static_cast<size_t>(run.stage);
    const std::vector<Stage>& stages = pipeline_.chain.stages;
    if (run.stage < 0 || stage >= stages.size()) {
      fail(fmt::format("the chain has no operation \"{}\"", name_of(run)));
    }
    const std::vector<StageOption>& options = stages[stage].options;
    const auto option = std::ranges::find(options, run.variant, &StageOption::name);
    StageRun found{run.phase, stage, static_cast<int32_t>(option - options.begin())};
    bool known = option != options.end();
    bool inside = stage >= begin_of(part) && stage < end_of(part);
    switch (run.phase) {
      case Phase::kForward:
        known = known || run.variant == "fast";
        found.variant = run.variant == "fast" ? 0 : found.variant + 1;
        break;
      case Phase::kLoss:
        known = run.variant == "default";
        found.variant = 0;
        inside = end_of(part) == stages.size();
        break;
      case Phase::kBackward:
        break;
    }
    if (!known) fail(fmt::format("\"{}\" has no variant \"{}\"", name_of(run), run.variant));
    if (!inside) fail(fmt::format("the part does not have \"{}\"", name_of(run)));
    return found;
  }

  const Pipeline& pipeline_;
  const PipelinePlan& plan_;
  PipelinePlace place_;
  std::vector<std::vector<PartRuns>> runs_;  // by part and plan
};

Machine machine_of(const Pipeline& pipeline, const PipelinePlan& plan) {
  Machine machine;
  machine.memories.clear();
  for (size_t d = 0; d < pipeline.devices.size(); ++d) {
    machine.memories.push_back({.name = pipeline.devices[d].name, .computes = true});
    if (d > 0) machine.memories[d].capacity = plan.devices[d].budget;
  }
  for (const Link& link : pipeline.links) {
    machine.channels.push_back({link.from, link.to, link.bytes_per_second, link.latency});
  }
  return machine;
}

// Goes through the actions in one order, and makes each op when it first runs. So the ops stand in
// the order of the plan.
class Lowering {
 public:
  Lowering(const Pipeline& pipeline, const PipelinePlan& plan)
      : pipeline_(pipeline),
        plan_(plan),
        reader_(pipeline, plan),
        messages_(pipeline, plan),
        index_{pipeline.chain.stages.size()},
        chain_graph_(lower(pipeline.chain)),
        accumulated_(index_.stages, 0),
        count_(plan.devices.size(), 0),
        ops_(3 * index_.stages + 1),
        made_(ops_ * static_cast<size_t>(pipeline.micro_batches), -1) {
    for (const PipelinePart& part : plan.parts) {
      device_of_.insert(device_of_.end(), static_cast<size_t>(part.stages), part.device);
    }
    program_.machine = machine_of(pipeline, plan);
    program_.graph.name = pipeline.name;
    program_.graph.ops.reserve(made_.size());
    values_.emplace(pipeline, device_of_, chain_graph_, program_.graph);
  }

  PipelineProgram build() {
    for (const PipelinePlace& place :
         internal::in_one_order(pipeline_, plan_, messages_, program_.stuck)) {
      place_ = place;
      perform(plan_.devices[place.device].order[place.action]);
    }
    if (!program_.stuck.empty()) return std::move(program_);
    add_missing_ops();
    find_dead();
    add_frees();
    return std::move(program_);
  }

 private:
  // A Step is a run of an op, with its time in the chain.
  struct Step {
    OpIndex op;
    int32_t variant;
    Nanos time;
  };

  ValueIndex value_of(int64_t message) const {
    const size_t boundary = messages_.boundary(message);
    return values_->position(messages_.micro_batch(message), messages_.is_gradient(message)
                                                                 ? index_.gradient(boundary)
                                                                 : index_.activation(boundary));
  }

  void add(const BoundAction& action) {
    program_.actions.push_back(action);
    program_.places.push_back(place_);
  }

  void perform(const PipelineAction& action) {
    const int64_t message = messages_.of(action);
    if (message >= 0) {
      BoundAction one{ActionKind::kWait, value_of(message), 0, place_.device};
      const bool sends = action.kind == PipelineActionKind::kSend;
      if (sends || action.kind == PipelineActionKind::kReceive) {
        one.kind = sends ? ActionKind::kSend : ActionKind::kReceive;
        one.channel = messages_.link(message);
        one.at = pipeline_.links[one.channel].from;
        one.to = pipeline_.links[one.channel].to;
      }
      add(one);
    }
    if (is_compute(action.kind)) compute(action);
  }

  void compute(const PipelineAction& action) {
    const int64_t m = action.micro_batch;
    const PartRuns& runs = reader_.runs(action);
    switch (action.kind) {
      case PipelineActionKind::kForward:
        for (const StageRun& run : *runs.forward) add_run(m, run);
        break;
      case PipelineActionKind::kBackward:
        for (const StageRun& run : *runs.backward) add_run(m, run);
        break;
      default:
        perform_split(m, *runs.backward, action.kind == PipelineActionKind::kWeightGradient);
        break;
    }
    finish();
  }

  // Returns the option of a backward.
  const StageOption& option_of(const StageRun& run) const {
    return pipeline_.chain.stages[run.stage].options[run.variant];
  }
  const WeightPart* split_of(const StageRun& run) const {
    if (run.phase != Phase::kBackward) return nullptr;
    return weight_part(pipeline_, run.stage, option_of(run));
  }

  // An action takes the sum of the times of its runs, rounded up on its device. Each run is rounded
  // up alone, so that the last ones may take less.
  void finish() {
    const PipelineDevice& device = pipeline_.devices[place_.device];
    Nanos sum;
    for (const Step& step : steps_) sum += step.time;
    Nanos left = time_on(device, sum);
    for (Step& step : steps_) {
      const Nanos time = std::min(left, time_on(device, step.time));
      left -= time;
      std::vector<Variant>& variants = program_.graph.ops[step.op].variants;
      if (variants[step.variant].time != time) {
        Variant shorter = variants[step.variant];
        shorter.name += fmt::format(" ({})", variants.size());
        shorter.time = time;
        step.variant = static_cast<int32_t>(variants.size());
        variants.push_back(std::move(shorter));
      }
      add({ActionKind::kRun, step.op, step.variant, place_.device});
    }
    steps_.clear();
  }

  // Runs the backward without the weight parts of its stages, or these parts. The input of a stage
  // stays for a weight part that reads it. If the backward makes the input again for the stage
  // before, that is another value: what the weight part reads then counts as kept.
  void perform_split(int64_t micro_batch, const std::vector<StageRun>& runs, bool weights) {
    std::vector<char> made_later(index_.stages + 1, 0);  // by boundary
    std::vector<char> made_again;                        // by run, from the last one
    for (size_t r = runs.size(); r-- > 0;) {
      made_again.push_back(made_later[runs[r].stage]);
      if (runs[r].phase == Phase::kForward) made_later[runs[r].stage + 1] = 1;
    }
    for (size_t r = 0; r < runs.size(); ++r) {
      const WeightPart* split = split_of(runs[r]);
      const bool again = made_again[runs.size() - 1 - r] != 0;
      if (weights) {
        if (split != nullptr) add_weight_run(micro_batch, runs[r], again);
      } else if (split != nullptr) {
        push_run(split_op(micro_batch, runs[r], again), runs[r].variant,
                 rest_of_backward(*split, option_of(runs[r])).time);
      } else {
        add_run(micro_batch, runs[r]);
      }
    }
  }

  // An op of a micro-batch is made once. Behind the ops of the chain stand the weight parts.
  OpIndex& slot(int64_t micro_batch, size_t op) {
    return made_[ops_ * static_cast<size_t>(micro_batch) + op];
  }
  OpIndex make(Op op) {
    program_.graph.ops.push_back(std::move(op));
    return static_cast<OpIndex>(program_.graph.ops.size()) - 1;
  }

  void push_run(OpIndex op, int32_t variant, Nanos time) {
    if (++count_[place_.device] > kMostProgramRuns) {
      throw InputError(fmt::format("a device runs more than {} operations", kMostProgramRuns),
                       {.pointer = fmt::format("/devices/{}", place_.device)});
    }
    steps_.push_back({op, variant, time});
  }

  OpIndex op_of(const StageRun& run) const {
    if (run.phase == Phase::kLoss) return index_.loss();
    return run.phase == Phase::kForward ? index_.forward(run.stage) : index_.backward(run.stage);
  }

  void add_run(int64_t micro_batch, const StageRun& run) {
    const OpIndex op = op_of(run);
    const Nanos time = chain_graph_.ops[op].variants[run.variant].time;
    push_run(chain_op(micro_batch, op), run.variant, time);
  }

  // Says whether a weight part of the next stage still reads what this stage wrote, on its device.
  bool output_stays(int64_t micro_batch, size_t stage) const {
    return read_later_.contains(place(micro_batch, stage + 1)) &&
           device_of_[stage] == device_of_[stage + 1];
  }

  // Returns an op of the chain's graph for a micro-batch, without what it writes for the weights.
  Op copy_of(int64_t micro_batch, OpIndex op) const {
    Op copy = chain_graph_.ops[op];
    copy.id = internal::prefix_of(micro_batch) + copy.id;
    const size_t stage = index_.stage_of(op).value_or(index_.stages - 1);
    for (Variant& variant : copy.variants) {
      if (copy.phase == Phase::kBackward) {
        std::erase(variant.writes, index_.weight_gradient(stage));
        // The output of the stage may stay for a weight part of the stage behind.
        if (output_stays(micro_batch, stage) &&
            std::erase(variant.consumes, index_.activation(stage + 1)) > 0) {
          variant.workspace -= std::min(variant.workspace, counted_output(stage));
        }
      }
      for (auto* list : {&variant.reads, &variant.writes, &variant.consumes}) {
        for (ValueIndex& value : *list) value = values_->position(micro_batch, value);
      }
      settle(stage, variant);
    }
    return copy;
  }

  // Gives a variant of a stage its device, and the time that it takes there.
  void settle(size_t stage, Variant& variant) const {
    variant.at = home_name(pipeline_, device_of_[stage]);
    variant.time = time_on(pipeline_.devices[device_of_[stage]], variant.time);
  }

  OpIndex chain_op(int64_t micro_batch, OpIndex op) {
    OpIndex& made = slot(micro_batch, static_cast<size_t>(op));
    if (made >= 0) return made;
    Op copy = copy_of(micro_batch, op);
    if (copy.phase == Phase::kBackward) {
      const size_t stage = *index_.stage_of(op);
      for (Variant& variant : copy.variants) accumulate(stage, variant);
      accumulated_[stage] = 1;
    }
    return made = make(std::move(copy));
  }

  // Adds the backward of a stage whose weight part comes later. `again`: the input of the stage is
  // made again before that.
  OpIndex split_op(int64_t micro_batch, const StageRun& run, bool again) {
    OpIndex& made = slot(micro_batch, static_cast<size_t>(op_of(run)));
    if (made >= 0) return made;
    Op copy = copy_of(micro_batch, op_of(run));
    const WeightPart& part = *weight_part(pipeline_, run.stage);
    const ValueIndex kept = values_->kept(micro_batch, run.stage);
    const ValueIndex input = values_->position(micro_batch, index_.activation(run.stage));
    const Cost rest = rest_of_backward(part, option_of(run));
    const bool reads_input = part.reads_input && option_of(run).reads_input;
    const bool stays = option_of(run).reads_output && option_of(run).consumes &&
                       output_stays(micro_batch, run.stage);
    for (Variant& variant : copy.variants) {  // The cost is that of the variant that runs.
      variant.time = rest.time;
      variant.workspace = rest.workspace;
      if (stays) variant.workspace -= std::min(rest.workspace, counted_output(run.stage));
      variant.writes.push_back(kept);
      settle(run.stage, variant);
      if (!reads_input) continue;
      std::erase(variant.consumes, input);
      if (again) variant.consumes.push_back(input);
    }
    if (reads_input && again) {
      program_.graph.values[kept].bytes += boundary_bytes(pipeline_.chain, run.stage);
    } else if (reads_input) {
      read_later_.insert(place(micro_batch, run.stage));
    }
    return made = make(std::move(copy));
  }

  // The first micro-batch makes the gradient of the stage's weights. Every other one makes its own
  // beside it, which is a workspace, and adds it in place.
  void accumulate(size_t stage, Variant& variant) const {
    if (!accumulated_[stage]) {
      variant.writes.push_back(values_->weight_gradient(stage));
      return;
    }
    variant.reads.push_back(values_->weight_gradient(stage));
    variant.workspace += pipeline_.chain.stages[stage].weight_gradient;
  }

  Bytes counted_output(size_t stage) const {
    return pipeline_.stages.empty() ? Bytes(0) : pipeline_.stages[stage].output_in_workspace;
  }

  int64_t place(int64_t micro_batch, size_t stage) const {
    return micro_batch * static_cast<int64_t>(index_.stages + 1) + static_cast<int64_t>(stage);
  }

  void add_weight_run(int64_t micro_batch, const StageRun& run, bool again) {
    const size_t stage = run.stage;
    const WeightPart& part = *weight_part(pipeline_, stage);
    read_later_.erase(place(micro_batch, stage));
    OpIndex& made = slot(micro_batch, 2 * index_.stages + 1 + stage);
    if (made < 0) {
      Variant variant;
      variant.time = part.cost.time;
      variant.workspace = part.cost.workspace;
      variant.reads = {values_->kept(micro_batch, stage)};
      if (part.consumes) variant.consumes = variant.reads;
      if (part.reads_input && option_of(run).reads_input && !again) {
        variant.reads.push_back(values_->position(micro_batch, index_.activation(stage)));
      }
      accumulate(stage, variant);
      accumulated_[stage] = 1;
      settle(stage, variant);
      made = make({.id = internal::prefix_of(micro_batch) + "W" + std::to_string(stage),
                   .phase = Phase::kBackward,
                   .variants = {std::move(variant)}});
    }
    push_run(made, 0, part.cost.time);
  }

  // The graph has ops that never run, too, so that a judge finds that their runs are missing.
  void add_missing_ops() {
    for (int64_t m = 0; m < pipeline_.micro_batches; ++m) {
      for (size_t op = 0; op < chain_graph_.ops.size(); ++op) chain_op(m, static_cast<OpIndex>(op));
    }
  }

  std::string what(const BoundAction& action) const {
    const Graph& graph = program_.graph;
    if (action.kind == ActionKind::kRun) return graph.ops[action.target].id;
    return fmt::format("{} {}", to_string(action.kind), graph.values[action.target].id);
  }

  // Finds what reads a value that is not there.
  void find_dead() {
    enum class There : char { kNot, kComing, kYes };
    const Graph& graph = program_.graph;
    PlaceMap<There> there(graph.values.size());
    for (int64_t m = 0; m < pipeline_.micro_batches; ++m) {
      there.at(values_->position(m, index_.activation(0)), device_of_[0]) = There::kYes;
    }
    std::vector<char> dead(plan_.devices.size(), 0);
    for (size_t a = 0; a < program_.actions.size(); ++a) {
      const BoundAction& action = program_.actions[a];
      const auto& [memory, reads, writes, run] = internal::model::touched(graph, action);
      for (const ValueIndex value : reads) {
        There& found = there.at(value, memory);
        if (action.kind == ActionKind::kWait && found == There::kComing) found = There::kYes;
        if (found == There::kYes || std::exchange(dead[program_.places[a].device], 1)) continue;
        program_.dead.push_back(
            {program_.places[a],
             fmt::format(
                 "{} reads {}, {}", what(action), graph.values[value].id,
                 found == There::kNot ? "which is not live" : "which may still be coming")});
      }
      if (run != nullptr) {
        for (const ValueIndex value : run->consumes) there.at(value, memory) = There::kNot;
      }
      const bool comes = action.kind == ActionKind::kReceive;
      for (const ValueIndex value : writes) {
        there.at(value, memory) = comes ? There::kComing : There::kYes;
      }
    }
    std::ranges::sort(program_.dead, {},
                      [](const PipelineFlaw& flaw) { return flaw.place.device; });
  }

  // A free is a part of what stands before it.
  void add_frees() {
    program_.actions = with_bound_frees(program_.graph, std::move(program_.actions));
    std::vector<PipelinePlace> places;
    places.reserve(program_.actions.size());
    size_t next = 0;
    for (const BoundAction& action : program_.actions) {
      places.push_back(action.kind == ActionKind::kFree ? places.back() : program_.places[next++]);
    }
    program_.places = std::move(places);
  }

  const Pipeline& pipeline_;
  const PipelinePlan& plan_;
  RunReader reader_;
  PipelineMessages messages_;
  PipelineProgram program_;
  PipelinePlace place_;  // what is performed now
  ChainIndex index_;
  Graph chain_graph_;
  std::optional<PipelineValues> values_;
  std::vector<int32_t> device_of_;  // by stage
  std::vector<char> accumulated_;   // by stage: whether an earlier op writes its weight gradient
  std::vector<int64_t> count_;      // by device: its runs
  size_t ops_;                      // of a micro-batch
  std::vector<OpIndex> made_;       // by micro-batch and op, or -1
  std::unordered_set<int64_t> read_later_;  // places of inputs that a weight part will read
  std::vector<Step> steps_;                 // of the compute action
};

}  // namespace

PipelineProgram lower(const Pipeline& pipeline, const PipelinePlan& plan) {
  return Lowering(pipeline, plan).build();
}

}  // namespace reprise
