#include "runtime/graph/graphed_step.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/graph/words.h"


namespace reprise::runtime::internal::graph {

using arena::StepMemory;
using step::StepValue;

namespace {

std::vector<const void*> addresses_of(const Recording& recording) {
  std::vector<const void*> all;
  for (const External& external : recording.externals) {
    const bool own = external.input < 0;
    all.push_back(own ? external.tensor.storage().data() : nullptr);
  }
  return all;
}

}  // namespace

std::string why_no_device_graph(const StepProgram& program, const Program& plan) {
  const Recording& recording = program.step.recording;
  if (!device::has_graphs(recording.device)) {
    return "the device " + recording.device.str() + " has no graphs";
  }
  if (!program.lowered.devices.empty()) return "its operations run on several devices";
  if (!step::host_reads(recording).empty()) {
    return "the step reads numbers on the host, so the host decides how it goes on";
  }
  if (!program.step.updates.each.empty()) {
    return "the step updates parameters, and a graph would keep the learning rate of its "
           "recording; "
           "leave the optimizer outside";
  }
  if (program.averager) return "the step averages gradients over a process group";
  for (const StepValue& value : recording.values) {
    if (value.device == recording.device || value.bytes == 0) continue;
    const std::string maker = value.maker < 0 ? "" : " of " + recording.calls[value.maker].name();
    return "a value" + maker + " lies on " + value.device.str() +
           ", where the graph cannot run operations";
  }
  for (const External& external : recording.externals) {
    if (external.input >= 0 || external.is_constant) continue;
    if (external.tensor.device() != recording.device) {
      return "the step reads a tensor on " + external.tensor.device().str() +
             ", which a graph would read only once";
    }
  }
  for (const Call& call : recording.calls) {
    for (const int32_t e : call.effects) {
      if (recording.externals[e].input < 0) continue;
      return "the step writes to an input, and a graph writes to a copy of it";
    }
  }
  for (const Program::Entry& entry : plan.entries()) {
    if (entry.kind == ActionKind::kCopy) {
      return "the plan moves values to another memory, and the host begins and ends these copies";
    }
    if (entry.kind == ActionKind::kRun && entry.run.restore_random) {
      return "the plan draws random numbers a second time, which needs their state from before; a "
             "larger budget may have a plan that does not";
    }
  }
  return "";
}

GraphedStep::GraphedStep(const Tensors& inputs) {
  for (const at::Tensor& input : inputs) {
    inputs_.push_back(input.defined() ? at::empty_strided(input.sizes(), input.strides(),
                                                          input.options().requires_grad(false))
                                      : at::Tensor());
  }
}

void GraphedStep::record(const Recording& recording, const Program& plan, Replay& replay) {
  addresses_ = addresses_of(recording);
  graph_ = device::record_graph(recording.device, [&] {
    const ReplayScope scope;
    replay.begin(inputs_);
    execute(plan, replay);
  });
}

bool GraphedStep::keep(size_t values, const Replay& replay, const StepMemory& memory) {
  arena_ = memory.keep();
  left_.clear();
  for (size_t v = 0; v < values; ++v) {
    const c10::Storage& storage = replay.storage_of(static_cast<int32_t>(v));
    if (!storage || storage.nbytes() == 0) continue;
    const auto block = memory.held_by(storage);
    if (!block) return false;
    left_.push_back({v, *block});
  }
  fresh_ = true;
  return true;
}

bool GraphedStep::fits(const Recording& recording, const StepMemory& memory) const {
  return graph_ && arena_ == memory.keep() && addresses_ == addresses_of(recording);
}

void GraphedStep::launch(const Tensors& inputs, Replay& replay, StepMemory& memory) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].defined()) inputs_[i].copy_(inputs[i]);
  }
  graph_->replay();
  replay.begin(inputs);  // Outputs may lie on the caller's own inputs.
  if (!std::exchange(fresh_, false)) {
    for (const Left& left : left_) replay.set(left.value, memory.revive(left.block));
  }
}

}  // namespace reprise::runtime::internal::graph
