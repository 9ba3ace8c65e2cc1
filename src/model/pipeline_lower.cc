// Writes what one device of a pipeline does out as a graph with its runs.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "model/pipeline_values.h"
#include "reprise/model/errors.h"
#include "reprise/model/lower.h"
#include "reprise/model/pipeline.h"

namespace reprise {

using internal::begin_of;
using internal::DeviceValues;
using internal::end_of;

namespace {

// A StageRun is a PartRun that was looked up.
struct StageRun {
  Phase phase = Phase::kForward;
  size_t stage = 0;     // of the chain; of the loss: the number of stages
  int32_t variant = 0;  // of the forward: 0 is "fast", 1 + o is option o; of a backward: option o
};

// A ProgramBuilder goes through the order of a device and makes each op when it first runs, so that
// the ops stand in the order of the plan.
class ProgramBuilder {
 public:
  ProgramBuilder(const Pipeline& pipeline, const PipelinePlan& plan, size_t device)
      : pipeline_(pipeline),
        plan_(plan),
        device_(device),
        index_{pipeline.chain.stages.size()},
        chain_graph_(lower(pipeline.chain)) {
    check_parts();
    program_.graph.name = fmt::format("{}, {}", pipeline_.name, plan_.devices[device_].name);
    program_.graph.fixed = pipeline_.chain.fixed;
    values_.emplace(pipeline_, plan_, device_, chain_graph_, program_.graph);
    accumulated_.assign(index_.stages, 0);
  }

  DeviceProgram build() {
    const std::vector<PipelineAction>& order = plan_.devices[device_].order;
    for (action_ = 0; action_ < order.size(); ++action_) {
      perform(order[action_]);
      program_.ends.push_back(program_.runs.size());
    }
    action_ = order.size();
    add_missing_ops();
    return std::move(program_);
  }

 private:
  [[noreturn]] void fail_at(const std::string& message) const {
    throw InputError(message, {.pointer = fmt::format("/devices/{}/order/{}", device_, action_)});
  }

  void check_parts() const {
    const size_t stages = pipeline_.chain.stages.size();
    for (size_t q = 0; q < plan_.parts.size(); ++q) {
      const PipelinePart& part = plan_.parts[q];
      const bool inside =
          part.first_stage >= 0 && part.stages >= 1 &&
          static_cast<size_t>(part.first_stage) < stages &&
          static_cast<size_t>(part.stages) <= stages - static_cast<size_t>(part.first_stage);
      if (inside) continue;
      throw InputError(fmt::format("part {} has stages that the chain does not have", q),
                       {.pointer = fmt::format("/parts/{}", q)});
    }
  }

  const PipelinePart& part_of(const PipelineAction& action) const {
    if (action.part < 0 || static_cast<size_t>(action.part) >= plan_.parts.size()) {
      fail_at(fmt::format("the plan has no part {}", action.part));
    }
    const PipelinePart& part = plan_.parts[action.part];
    if (part.device != static_cast<int32_t>(device_)) {
      fail_at(fmt::format("part {} lies on another device", action.part));
    }
    if (action.micro_batch < 0 || action.micro_batch >= pipeline_.micro_batches) {
      fail_at(fmt::format("there is no micro-batch {}", action.micro_batch));
    }
    return part;
  }

  const PartPlan& plan_for(const PipelinePart& part, const PipelineAction& action) const {
    const auto m = static_cast<size_t>(action.micro_batch);
    if (m >= part.plan_of.size() || part.plan_of[m] < 0 ||
        static_cast<size_t>(part.plan_of[m]) >= part.plans.size()) {
      fail_at(
          fmt::format("part {} has no plan for micro-batch {}", action.part, action.micro_batch));
    }
    return part.plans[part.plan_of[m]];
  }

  void perform(const PipelineAction& action) {
    const PipelinePart& part = part_of(action);
    const int64_t m = action.micro_batch;
    switch (action.kind) {
      case PipelineActionKind::kForward:
        for (const PartRun& run : plan_for(part, action).forward) {
          const StageRun found = find(part, run);
          if (found.phase != Phase::kForward) {
            fail_at(fmt::format("the forward of a part cannot run \"{}\"", run.op));
          }
          add_run(m, found);
        }
        return;
      case PipelineActionKind::kBackward:
        for (const PartRun& run : plan_for(part, action).backward) add_run(m, find(part, run));
        return;
      case PipelineActionKind::kInputGradient:
        return perform_split(m, part, plan_for(part, action).backward, false);
      case PipelineActionKind::kWeightGradient:
        return perform_split(m, part, plan_for(part, action).backward, true);
      case PipelineActionKind::kReceive:
      case PipelineActionKind::kSend:
      case PipelineActionKind::kWait:
        return add_message(m, part, action);
    }
  }

  const StageOption& option_of(const StageRun& run) const {
    return pipeline_.chain.stages[run.stage].options[run.variant];
  }
  const WeightPart* split_of(const StageRun& run) const {
    if (run.phase != Phase::kBackward) return nullptr;
    return weight_part(pipeline_, run.stage, option_of(run));
  }

  // Runs the backward without the weight parts of its stages, or these parts. The input of a stage
  // stays for a weight part that reads it. If the backward makes the input again for the stage
  // before, that is another value: what the weight part reads then counts as kept.
  void perform_split(int64_t micro_batch, const PipelinePart& part,
                     const std::vector<PartRun>& backward, bool weights) {
    std::vector<StageRun> runs;
    for (const PartRun& run : backward) runs.push_back(find(part, run));
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
        push_run(split_op(micro_batch, runs[r], again), runs[r].variant);
      } else {
        add_run(micro_batch, runs[r]);
      }
    }
  }

  StageRun find(const PipelinePart& part, const PartRun& run) {
    const auto known = found_.find({run.op, run.variant});
    StageRun result;
    if (known != found_.end()) {
      result = known->second;
    } else {
      result = look_up(run);
      found_.emplace(std::pair{run.op, run.variant}, result);
    }
    const bool inside = result.phase == Phase::kLoss
                            ? end_of(part) == index_.stages
                            : result.stage >= begin_of(part) && result.stage < end_of(part);
    if (!inside) fail_at(fmt::format("the part does not have \"{}\"", run.op));
    return result;
  }

  StageRun look_up(const PartRun& run) {
    if (ops_of_chain_.empty()) {
      for (size_t o = 0; o < chain_graph_.ops.size(); ++o) {
        ops_of_chain_.emplace(chain_graph_.ops[o].id, static_cast<OpIndex>(o));
      }
    }
    const auto found = ops_of_chain_.find(run.op);
    if (found == ops_of_chain_.end()) {
      fail_at(fmt::format("the chain has no operation \"{}\"", run.op));
    }
    const Op& op = chain_graph_.ops[found->second];
    for (size_t v = 0; v < op.variants.size(); ++v) {
      if (op.variants[v].name != run.variant) continue;
      return {op.phase, index_.stage_of(found->second).value_or(index_.stages),
              static_cast<int32_t>(v)};
    }
    fail_at(fmt::format("\"{}\" has no variant \"{}\"", run.op, run.variant));
  }

  // An op of a micro-batch is made once.
  enum class Sort : int64_t { kOfChain, kWeightPart, kReceive, kSend, kWait };
  OpIndex& slot(int64_t micro_batch, Sort sort, OpIndex op) {
    const int64_t kinds = 5, ops = 2 * static_cast<int64_t>(index_.stages) + 1;
    return made_.try_emplace((micro_batch * kinds + static_cast<int64_t>(sort)) * ops + op, -1)
        .first->second;
  }

  void push_run(OpIndex op, int32_t variant) {
    if (static_cast<int64_t>(program_.runs.size()) >= kMostProgramRuns) {
      fail_at(fmt::format("the device runs more than {} operations", kMostProgramRuns));
    }
    program_.runs.push_back({op, variant});
  }

  OpIndex op_of(const StageRun& run) const {
    switch (run.phase) {
      case Phase::kForward:
        return index_.forward(run.stage);
      case Phase::kLoss:
        return index_.loss();
      case Phase::kBackward:
        return index_.backward(run.stage);
    }
    return 0;
  }

  void add_run(int64_t micro_batch, const StageRun& run) {
    push_run(chain_op(micro_batch, op_of(run)), run.variant);
  }

  // Returns an op of the chain's graph for a micro-batch, without what it writes for the weights.
  Op copy_of(int64_t micro_batch, OpIndex op) const {
    Op copy = chain_graph_.ops[op];
    copy.id = fmt::format("m{}/{}", micro_batch, copy.id);
    for (Variant& variant : copy.variants) {
      if (copy.phase == Phase::kBackward) {
        const size_t stage = *index_.stage_of(op);
        std::erase(variant.writes, index_.weight_gradient(stage));
        // The output of the stage may stay for a weight part of the stage behind.
        if (read_later_.contains(place(micro_batch, stage + 1)) &&
            std::erase(variant.consumes, index_.activation(stage + 1)) > 0) {
          variant.workspace -= std::min(variant.workspace, counted_output(stage));
        }
      }
      for (auto* list : {&variant.reads, &variant.writes, &variant.consumes}) {
        for (ValueIndex& value : *list) value = values_->position(micro_batch, value);
      }
    }
    return copy;
  }

  OpIndex chain_op(int64_t micro_batch, OpIndex op) {
    OpIndex& made = slot(micro_batch, Sort::kOfChain, op);
    if (made >= 0) return made;
    made = static_cast<OpIndex>(program_.graph.ops.size());
    Op copy = copy_of(micro_batch, op);
    if (copy.phase == Phase::kBackward) {
      const size_t stage = *index_.stage_of(op);
      for (Variant& variant : copy.variants) accumulate(stage, variant);
      accumulated_[stage] = 1;
    }
    program_.graph.ops.push_back(std::move(copy));
    return made;
  }

  // Adds the backward of a stage whose weight part comes later. `again`: the input of the stage is
  // made again before that.
  OpIndex split_op(int64_t micro_batch, const StageRun& run, bool again) {
    OpIndex& made = slot(micro_batch, Sort::kOfChain, op_of(run));
    if (made >= 0) return made;
    made = static_cast<OpIndex>(program_.graph.ops.size());
    Op copy = copy_of(micro_batch, op_of(run));
    const WeightPart& part = *weight_part(pipeline_, run.stage);
    const ValueIndex kept = values_->kept(micro_batch, run.stage);
    const ValueIndex input = values_->position(micro_batch, index_.activation(run.stage));
    const Cost rest = rest_of_backward(part, option_of(run));
    const bool reads_input = part.reads_input && option_of(run).reads_input;
    const bool output_stays = option_of(run).reads_output && option_of(run).consumes &&
                              read_later_.contains(place(micro_batch, run.stage + 1));
    for (Variant& variant : copy.variants) {  // The cost is that of the variant that runs.
      variant.time = rest.time;
      variant.workspace = rest.workspace;
      if (output_stays) variant.workspace -= std::min(rest.workspace, counted_output(run.stage));
      variant.writes.push_back(kept);
      if (!reads_input) continue;
      std::erase(variant.consumes, input);
      if (again) variant.consumes.push_back(input);
    }
    if (reads_input && again) {
      program_.graph.values[kept].bytes += boundary_bytes(pipeline_.chain, run.stage);
    } else if (reads_input) {
      read_later_.insert(place(micro_batch, run.stage));
    }
    program_.graph.ops.push_back(std::move(copy));
    return made;
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
    read_later_.erase(place(micro_batch, stage));
    OpIndex& made = slot(micro_batch, Sort::kWeightPart, index_.backward(stage));
    if (made < 0) {
      made = static_cast<OpIndex>(program_.graph.ops.size());
      Op op{.id = fmt::format("m{}/W{}", micro_batch, stage),
            .phase = Phase::kBackward,
            .variants = {Variant{}}};
      Variant& variant = op.variants.front();
      const WeightPart& part = *weight_part(pipeline_, stage);
      variant.time = part.cost.time;
      variant.workspace = part.cost.workspace;
      variant.reads = {values_->kept(micro_batch, stage)};
      if (part.consumes) variant.consumes = variant.reads;
      if (part.reads_input && option_of(run).reads_input && !again) {
        variant.reads.push_back(values_->position(micro_batch, index_.activation(stage)));
      }
      accumulate(stage, variant);
      accumulated_[stage] = 1;
      program_.graph.ops.push_back(std::move(op));
    }
    push_run(made, 0);
  }

  // Messages of a part: activations come before its first stage and go behind its last one,
  // gradients the other way.
  void add_message(int64_t micro_batch, const PipelinePart& part, const PipelineAction& action) {
    const bool receives = action.kind == PipelineActionKind::kReceive;
    const bool activation = action.message == MessageKind::kActivation;
    const size_t boundary = receives == activation ? begin_of(part) : end_of(part);
    const ValueIndex of_chain =
        activation ? index_.activation(boundary) : index_.gradient(boundary);
    if (boundary == (receives == activation ? 0 : index_.stages)) {
      fail_at(fmt::format("there is no part {} this one", boundary == 0 ? "before" : "behind"));
    }
    const Sort sort = receives                                   ? Sort::kReceive
                      : action.kind == PipelineActionKind::kSend ? Sort::kSend
                                                                 : Sort::kWait;
    const auto place = static_cast<OpIndex>(boundary + (activation ? 0 : index_.stages));
    OpIndex& made = slot(micro_batch, sort, place);
    if (made < 0) {
      made = static_cast<OpIndex>(program_.graph.ops.size());
      const ValueIndex value = values_->position(micro_batch, of_chain);
      Op op{.id = fmt::format("{} {}", to_string(action.kind), program_.graph.values[value].id),
            .once = true,
            .variants = {Variant{}}};
      (receives ? op.variants.front().writes : op.variants.front().reads) = {value};
      program_.graph.ops.push_back(std::move(op));
    }
    push_run(made, 0);
  }

  // The graph has ops that never run, too, so that a judge finds that their runs are missing.
  void add_missing_ops() {
    for (const PipelinePart& part : plan_.parts) {
      if (part.device != static_cast<int32_t>(device_)) continue;
      for (int64_t m = 0; m < pipeline_.micro_batches; ++m) {
        for (size_t i = begin_of(part); i < end_of(part); ++i) chain_op(m, index_.forward(i));
        if (end_of(part) == index_.stages) chain_op(m, index_.loss());
        for (size_t i = end_of(part); i-- > begin_of(part);) chain_op(m, index_.backward(i));
      }
    }
  }

  const Pipeline& pipeline_;
  const PipelinePlan& plan_;
  size_t device_;
  size_t action_ = 0;
  ChainIndex index_;
  Graph chain_graph_;
  DeviceProgram program_;
  std::optional<DeviceValues> values_;
  std::vector<char> accumulated_;  // by stage: whether an earlier op writes its weight gradient
  std::unordered_map<int64_t, OpIndex> made_;
  std::unordered_set<int64_t> read_later_;  // places of inputs that a weight part will read
  std::unordered_map<std::string, OpIndex> ops_of_chain_;
  std::map<std::pair<std::string, std::string>, StageRun> found_;
};

}  // namespace

DeviceProgram lower(const Pipeline& pipeline, const PipelinePlan& plan, size_t device) {
  if (device >= plan.devices.size()) {
    throw InputError(fmt::format("the plan has no device {}", device));
  }
  return ProgramBuilder(pipeline, plan, device).build();
}

std::vector<Nanos> action_times(const Pipeline& pipeline, const PipelinePlan& plan, size_t device) {
  const DeviceProgram program = lower(pipeline, plan, device);
  return action_times(pipeline, program, device);
}

std::vector<Nanos> action_times(const Pipeline& pipeline, const DeviceProgram& program,
                                size_t device) {
  std::vector<Nanos> times;
  size_t run = 0;
  for (const size_t end : program.ends) {
    Nanos time;
    for (; run < end; ++run) {
      const Run& one = program.runs[run];
      time += program.graph.ops[one.op].variants[one.variant].time;
    }
    times.push_back(time_on(pipeline.devices[device], time));
  }
  return times;
}

}  // namespace reprise
