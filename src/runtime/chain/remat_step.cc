#include "runtime/chain/remat_step.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "reprise/model/errors.h"
#include "reprise/runtime/allocator.h"
#include "runtime/chain/execute.h"
#include "runtime/chain/loss_sink.h"
#include "runtime/chain/remat_state.h"
#include "runtime/device/activity.h"
#include "runtime/device/device.h"
#include "runtime/device/limit_scope.h"
#include "runtime/device/step_log.h"

namespace reprise::runtime::internal::chain {

using device::LimitScope;
using device::make_node;
using device::StepMeter;
using device::StepUnderWay;
using transfer::MovedBytes;
using Turn = device::Turns::Turn;

namespace {

// A BackwardTurn keeps the model alive.
struct BackwardTurn {
  std::shared_ptr<Remat::State> state;
  Turn turn;
  explicit BackwardTurn(std::shared_ptr<Remat::State> s)
      : state(std::move(s)), turn(state->turns) {}
};

// A RematNode is one step in flight: the autograd node of the whole model.
struct RematNode final : torch::autograd::Node {
  std::shared_ptr<Remat::State> state;
  std::unique_ptr<ChainStep> step;
  StepReport report;
  c10::Device device;
  Nanos planned_time;
  int64_t uncounted = 0;
  std::optional<LimitScope> limit;  // in force until the step ends
  std::optional<StepMeter> meter;  // if the step is measured action by action
  // The outputs that the caller was given, and how much smaller the peak is if the caller has dropped them
  // by the time of the backward.
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> given;
  Bytes less_if_dropped;
  std::optional<StepUnderWay> under_way{std::in_place};
  const uint64_t failures;  // of requests for memory before the step
  bool over = false;        // one of its halves failed, or it ran to its end

  RematNode(std::shared_ptr<Remat::State> s, std::unique_ptr<ChainStep> new_step, c10::Device d)
      : state(std::move(s)), step(std::move(new_step)), device(d), failures(failed_requests(d)) {}
  ~RematNode() override { finish(); }
  std::string name() const override { return "reprise::Remat"; }

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    if (at::GradMode::is_enabled()) {
      throw InputError(
          "double backward (create_graph=true) through a planned model is not "
          "supported; call backward() without it");
    }
    if (!step) {
      throw InputError("backward() ran through this step already; run forward again");
    }
    if (std::all_of(given.begin(), given.end(), [](const auto& each) { return each.expired(); })) {
      report.predicted_peak -= less_if_dropped;
    }
    // The turn lasts until autograd has added all gradients to .grad, or has given up.
    auto turn = std::make_shared<BackwardTurn>(state);
    torch::autograd::Engine::get_default_engine().queue_callback([turn] {});
    Tensors result;
    over = true;
    try {
      result = state->telling([&] { return step->backward(std::move(gradients)); });
    } catch (...) {
      finish();
      throw;
    }
    note_measured();
    finish();
    report.steps = state->report.steps + 1;
    report.plans = state->report.plans;
    report.offload_choice = state->report.offload_choice;
    state->report = report;
    return result;
  }
  void release_variables() override { finish(); }

  void note_measured() {
    const MovedBytes moved = step->moved();
    report.moved_out = moved.out;
    report.moved_in = moved.in;
    report.waited = moved.waited;
    report.measured_peak = Bytes(memory_count(device).peak + uncounted);
    if (!meter) return;
    meter->finish();
    report.measured_peak = meter->peak() + Bytes(uncounted);
    state->log.add(step->program(), {report.predicted_peak, planned_time}, Bytes(uncounted),
                   std::move(*meter));
  }

  void finish() {
    if (!step) return;
    // The backward never ran, and a request for memory failed since the step began (in the loss,
    // say).
    if (!over && failed_requests(device) > failures) step->undo();
    step.reset();
    limit.reset();
    under_way.reset();
  }
};

Tensors run_planned(const std::shared_ptr<Remat::State>& state,
                    const std::vector<Tensors>& inputs) {
  const ModelContents contents = state->contents();
  const Tensors given = together(inputs);
  auto wants_grad = [](const at::Tensor& t) { return t.defined() && t.requires_grad(); };
  if (!state->has_sharded_parameters() && std::none_of(given.begin(), given.end(), wants_grad) &&
      std::none_of(contents.parameters.begin(), contents.parameters.end(), wants_grad)) {
    return state->run_plain(inputs);
  }
  const int64_t uncounted = state->ready(inputs, contents);
  Remat::State::Instance& instance = *state->last;
  const PlannedModel& planned = *instance.planned;
  const c10::Device device = planned.model.device;
  const int64_t start = memory_count(device).live + uncounted;
  auto step = std::make_unique<ChainStep>(instance.planned, inputs);
  auto node = make_node<RematNode>(state, std::move(step), device);
  node.node->uncounted = uncounted;
  node.node->report.budget = instance.result.budget;
  node.node->report.predicted_peak =
      instance.result.plan->peak + Bytes(start) - (planned.chain.fixed + planned.chain.input.bytes);
  if (instance.peak_if_dropped) {
    node.node->less_if_dropped = instance.result.plan->peak - *instance.peak_if_dropped;
  }
  node.node->planned_time = instance.result.plan->time;
  if (state->options.enforce && !state->options.budget.unlimited()) {
    node.node->limit.emplace(instance.result.budget.count() - uncounted, device);
  }
  reset_peak(device);
  if (state->log.wanted()) {
    node.node->meter.emplace(device);
    node.node->step->measure_with(&*node.node->meter);
  }

  Tensors outputs;
  try {
    outputs = state->telling([&] { return node.node->step->forward(); });
  } catch (...) {
    node.node->over = true;
    node.node->finish();
    throw;
  }
  torch::autograd::edge_list edges;
  // In plain training, the gradients of the last branch's inputs come first.
  for (auto branch = inputs.rbegin(); branch != inputs.rend(); ++branch) {
    for (const at::Tensor& input : *branch) {
      edges.push_back(input.requires_grad() ? torch::autograd::impl::gradient_edge(input)
                                            : torch::autograd::Edge());
    }
  }
  for (const at::Tensor& parameter : planned.model.parameters) {
    edges.push_back(torch::autograd::impl::gradient_edge(parameter));
  }
  node.node->set_next_edges(std::move(edges));
  const std::vector<bool> needs_grad = planned.model.output_needs_grad();
  for (size_t e = 0; e < outputs.size(); ++e) {
    outputs[e] = outputs[e].detach();
    if (needs_grad[e]) {
      torch::autograd::set_history(outputs[e], node.pointer);
    } else {
      node.node->add_input_metadata(outputs[e]);
    }
    node.node->given.emplace_back(outputs[e].storage().getWeakStorageImpl());
  }
  return outputs;
}

}  // namespace

Tensors run_step(const std::shared_ptr<Remat::State>& state, const std::vector<Tensors>& inputs) {
  // Within a stage of another planned model, the plan of that model decides.
  if (!at::GradMode::is_enabled() || within_stage()) return state->run_plain(inputs);
  for (const at::Tensor& input : together(inputs)) {
    if (!input.defined() || !input._fw_grad(0).defined()) continue;
    throw InputError(
        "an input has a forward gradient (torch.autograd.forward_ad), which a plan does not "
        "carry on; call the plain model");
  }
  const Turn turn(state->turns);
  try {
    return run_planned(state, inputs);
  } catch (const StageChanged& change) {
    if (!change.undone() || state->ranks) throw;  // The other ranks have begun this step.
  }
  return run_planned(state, inputs);  // measured again
}

}  // namespace reprise::runtime::internal::chain
