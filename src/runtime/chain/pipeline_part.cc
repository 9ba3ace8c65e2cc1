#include "runtime/chain/pipeline_part.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <algorithm>
#include <utility>

#include "reprise/model/errors.h"
#include "reprise/model/lower.h"
#include "reprise/runtime/allocator.h"
#include "runtime/chain/loss_sink.h"
#include "runtime/chain/measure_part.h"
#include "runtime/device/backward_queue.h"
#include "runtime/device/device.h"
#include "runtime/device/made_storages.h"
#include "runtime/device/plain_tensors.h"
#include "runtime/device/tensor_bytes.h"

namespace reprise::runtime::internal::chain {

using device::counted_bytes;
using device::drain_backward_queue;
using device::make_node;
using device::Measuring;
using device::require_plain;
using device::uncounted_bytes;

namespace {

at::Tensor without_bytes(const at::Tensor& tensor, bool needs_grad) {
  at::Tensor shape = tensor.detach().to(at::kMeta);
  if (needs_grad) shape.set_requires_grad(true);
  return shape;
}

at::Tensor room_like(const at::Tensor& shape, c10::Device device, bool needs_grad) {
  at::Tensor room = at::empty(shape.sizes(), shape.options().device(device).requires_grad(false));
  if (needs_grad) room.set_requires_grad(true);
  return room;
}

// A part is the only branch of its model.
std::vector<StageBranch> only_branch(const std::vector<Stage>& stages) { return {{"", stages}}; }

}  // namespace

PipelinePart::PipelinePart(std::vector<Stage> stages, const Tensors& sample, const Loss& loss,
                           const MeasureOptions& options, const std::function<void()>& forget_error)
    : stages_(std::move(stages)), has_loss_(static_cast<bool>(loss)) {
  if (sample.empty()) throw InputError("the sample of a part of a pipeline has no tensor");
  for (const at::Tensor& input : sample) {
    require_plain(input, "the sample input");
    inputs_.push_back(without_bytes(input, input.requires_grad()));
    gets_input_ = gets_input_ || input.requires_grad();
  }
  if (sample[0].device().is_cpu()) install_cpu_allocator();
  const Measuring alone;
  planned_ = std::make_shared<PlannedModel>(prepare(only_branch(stages_), {}, {sample}));
  const PreparedModel& model = planned_->model;
  require_own_parameters(model);
  const Tensors outputs = run_once(model, sample);
  const std::vector<bool>& needs_grad = model.stages.back().traits.output_needs_grad;
  for (size_t e = 0; e < outputs.size(); ++e) {
    if (!has_loss_ && !outputs[e].is_contiguous()) {
      throw InputError(
          fmt::format("output {} of stage '{}' is not contiguous, and goes to the next part as a "
                      "message: let the "
                      "stage end with contiguous()",
                      e, model.stages.back().stage.name));
    }
    outputs_.push_back(without_bytes(outputs[e], needs_grad[e]));
  }
  MeasuredChain measured = measure_part(model, sample, loss, options, forget_error);
  if (!has_loss_) {
    measured.chain.loss = {};
    measured.chain.stages.back().output_gradient = output_gradient_bytes();
  }
  planned_->set_measured(std::move(measured));
  key_ = key_of({{at::empty({0}, sample[0].options().requires_grad(false))}},
                contents_of(only_branch(stages_), {}));
}

Bytes PipelinePart::output_gradient_bytes() const {
  int64_t bytes = 0;
  for (const at::Tensor& output : outputs_) {
    if (output.requires_grad()) {
      bytes += counted_bytes(static_cast<int64_t>(output.nbytes()), planned_->model.device);
    }
  }
  return Bytes(bytes);
}

int64_t PipelinePart::uncounted() const {
  const ModelContents contents = contents_of(only_branch(stages_), {});
  Tensors resident = contents.parameters;
  resident.insert(resident.end(), contents.buffers.begin(), contents.buffers.end());
  return uncounted_bytes(resident);
}

PipelinePart::Way PipelinePart::way_of(const PartPlan& plan, int32_t first_stage) const {
  const Chain& chain = planned_->chain;
  const ChainIndex index{chain.stages.size()};
  const auto local = [&](const PartRun& run) -> Run {
    if (run.phase == Phase::kLoss) return {index.loss(), 0};
    const auto stage = static_cast<size_t>(run.stage - first_stage);
    const std::vector<StageOption>& all = chain.stages.at(stage).options;
    const auto option = std::find_if(all.begin(), all.end(),
                                     [&](const StageOption& o) { return o.name == run.variant; });
    const bool forward = run.phase == Phase::kForward, fast = forward && run.variant == "fast";
    if (!fast && option == all.end()) {
      throw InputError(fmt::format("stage '{}' has no option \"{}\", which the plan takes",
                                   chain.stages[stage].name, run.variant));
    }
    const auto number = fast ? -1 : static_cast<int32_t>(option - all.begin());
    if (forward) return {index.forward(stage), number + 1};
    return {index.backward(stage), number};
  };
  std::vector<Run> runs;
  for (const PartRun& run : plan.forward) runs.push_back(local(run));
  // A part without the loss has an empty one between its halves.
  if (!has_loss_) runs.push_back({index.loss(), 0});
  for (const PartRun& run : plan.backward) runs.push_back(local(run));

  const Graph graph = lower(chain);
  std::vector<Action> actions = with_frees(graph, runs);
  // The input of a part behind another one is a message, which goes after its last use.
  const ValueIndex input = index.activation(0);
  std::vector<size_t> starts;  // by run: its action
  size_t last_use = 0;
  for (size_t a = 0; a < actions.size(); ++a) {
    if (actions[a].kind != ActionKind::kRun) continue;
    const Run& run = runs[starts.size()];
    const Variant& variant = graph.ops[run.op].variants[run.variant];
    if (std::find(variant.reads.begin(), variant.reads.end(), input) != variant.reads.end()) {
      last_use = a;
    }
    starts.push_back(a);
  }
  if (gets_input_) {
    actions.insert(actions.begin() + static_cast<std::ptrdiff_t>(last_use) + 1,
                   {ActionKind::kFree, graph.values[input].id, ""});
    for (size_t& start : starts) start += start > last_use ? 1 : 0;
  }
  starts.push_back(actions.size());
  Way way{.program = std::make_shared<const Program>(graph, actions)};
  way.forward_end = starts[plan.forward.size()];
  // An empty loss frees its values at once: the messages hold the bytes that are to be sent.
  way.backward_begin = has_loss_ ? way.forward_end : starts[plan.forward.size() + 1];
  return way;
}

void PipelinePart::use(const PipelinePlan& plan, size_t part) {
  const reprise::PipelinePart& own = plan.parts.at(part);
  if (static_cast<size_t>(own.stages) != planned_->chain.stages.size()) {
    throw InputError(fmt::format("part {} of the plan has {} stages, and this part has {}", part,
                                 own.stages, planned_->chain.stages.size()));
  }
  std::vector<Way> ways;
  for (const PartPlan& one : own.plans) ways.push_back(way_of(one, own.first_stage));
  // The tables of a planned model are the same for all plans of its chain.
  const Graph graph = lower(planned_->chain);
  planned_->set_plan(with_frees(graph, plain_runs(graph)), {});
  ways_ = std::move(ways);
  way_of_ = own.plan_of;
}

void PipelinePart::keep_everything(int64_t micro_batches) {
  const std::vector<reprise::Stage>& stages = planned_->chain.stages;
  PartPlan plain;
  for (size_t i = 0; i < stages.size(); ++i) {
    const std::string& option = stages[i].options.front().name;
    const auto stage = static_cast<int32_t>(i);
    plain.forward.push_back({Phase::kForward, stage, option});
    plain.backward.insert(plain.backward.begin(), {Phase::kBackward, stage, option});
  }
  PipelinePlan plan;
  plan.parts.emplace_back();
  plan.parts[0].stages = static_cast<int32_t>(stages.size());
  plan.parts[0].plans.push_back(std::move(plain));
  plan.parts[0].plan_of.assign(micro_batches, 0);
  use(plan, 0);
}

void PipelinePart::require_unchanged() const {
  const c10::Device device = planned_->model.device;
  const at::Tensor nothing = at::empty({0}, at::TensorOptions(device).dtype(inputs_[0].dtype()));
  if (key_of({{nothing}}, contents_of(only_branch(stages_), {})) == *key_) return;
  throw InputError(
      "a part of the pipeline has changed since it was measured: its parameters, train flags, "
      "autocast state or threads are others. Make the pipeline anew");
}

void PipelinePart::begin_step(std::optional<int64_t> limit) {
  if (way_of_.empty()) throw InputError("the part has no plan yet");
  require_unchanged();
  flights_.clear();
  random_before_.emplace(planned_->model.device);
  under_way_.emplace();
  limit_.emplace(limit, planned_->model.device);
}

void PipelinePart::end_step() {
  flights_.clear();
  limit_.reset();
  under_way_.reset();
  random_before_.reset();
}

void PipelinePart::abort_step() {
  if (!random_before_) return;
  flights_.clear();
  drain_backward_queue();
  for (const at::Tensor& parameter : planned_->model.parameters) parameter.mutable_grad().reset();
  random_before_->restore();
  end_step();
}

PipelinePart::Flight& PipelinePart::flight(int64_t micro_batch) {
  if (!under_way_) throw InputError("no step of the part is under way");
  if (micro_batch < 0 || micro_batch >= static_cast<int64_t>(way_of_.size())) {
    throw InputError(fmt::format("there is no micro-batch {}", micro_batch));
  }
  return flights_[micro_batch];
}

const PipelinePart::Way& PipelinePart::way(int64_t micro_batch) const {
  return ways_.at(way_of_[micro_batch]);
}

void PipelinePart::give(int64_t micro_batch, Tensors input) {
  bool same = input.size() == inputs_.size();
  for (size_t e = 0; same && e < input.size(); ++e) {
    same = input[e].sizes() == inputs_[e].sizes() && input[e].dtype() == inputs_[e].dtype();
  }
  if (!same) {
    throw InputError(
        fmt::format("micro-batch {} differs from the sample in the number, the shapes or the types "
                    "of its tensors",
                    micro_batch));
  }
  flight(micro_batch).input = std::move(input);
}

void PipelinePart::take_input_from(PipelinePart& before, int64_t micro_batch) {
  Tensors input = std::move(before.flight(micro_batch).output_message);
  before.flight(micro_batch).output_message.clear();
  for (size_t e = 0; e < input.size(); ++e) {
    if (inputs_.at(e).requires_grad()) input[e].set_requires_grad(true);
  }
  give(micro_batch, std::move(input));
}

void PipelinePart::take_gradient_from(PipelinePart& behind, int64_t micro_batch) {
  Flight& mine = flight(micro_batch);
  mine.gradient = std::move(behind.flight(micro_batch).gradient_message);
  behind.flight(micro_batch).gradient_message.clear();
}

void PipelinePart::give_gradient(int64_t micro_batch, Tensors gradient) {
  const auto wanted = std::count_if(outputs_.begin(), outputs_.end(),
                                    [](const at::Tensor& t) { return t.requires_grad(); });
  if (static_cast<int64_t>(gradient.size()) != wanted) {
    throw InputError(fmt::format("micro-batch {} gets {} gradients, and {} outputs want one",
                                 micro_batch, gradient.size(), wanted));
  }
  flight(micro_batch).gradient = std::move(gradient);
}

Tensors PipelinePart::receive(int64_t micro_batch, MessageKind message) {
  Flight& mine = flight(micro_batch);
  const bool activation = message == MessageKind::kActivation;
  Tensors& room = activation ? mine.input : mine.gradient;
  room.clear();
  Tensors views;  // for the one who writes: without a history
  for (const at::Tensor& shape : activation ? inputs_ : outputs_) {
    if (!activation && !shape.requires_grad()) continue;
    room.push_back(room_like(shape, planned_->model.device, activation && shape.requires_grad()));
    views.push_back(room.back().detach());
  }
  return views;
}

const Tensors& PipelinePart::message(int64_t micro_batch, MessageKind message) const {
  const auto found = flights_.find(micro_batch);
  if (found == flights_.end()) {
    throw InputError(
        fmt::format("micro-batch {} has no {} to send", micro_batch, to_string(message)));
  }
  return message == MessageKind::kActivation ? found->second.output_message
                                             : found->second.gradient_message;
}

void PipelinePart::sent(int64_t micro_batch, MessageKind message) {
  Flight& mine = flight(micro_batch);
  (message == MessageKind::kActivation ? mine.output_message : mine.gradient_message).clear();
}

void PipelinePart::forward(int64_t micro_batch) {
  Flight& mine = flight(micro_batch);
  if (mine.input.empty()) {
    throw InputError(fmt::format("micro-batch {} has no input", micro_batch));
  }
  const Way& own = way(micro_batch);
  planned_->program = own.program;
  std::vector<Tensors> inputs;
  inputs.push_back(std::move(mine.input));
  mine.step = std::make_unique<ChainStep>(planned_, std::move(inputs));
  mine.input.clear();
  mine.step->begin_in_pieces([this](const std::vector<size_t>& positions, GradientBook& book) {
    add_gradients(positions, book);
  });
  mine.step->advance(0, own.forward_end);
  if (has_loss_) return;
  for (const at::Tensor& output : mine.step->output()) {
    mine.output_message.push_back(output.detach());
  }
  mine.step->advance(own.forward_end + 1, own.backward_begin);
}

void PipelinePart::run_loss(ChainStep& step, const Loss& loss, const at::Tensor& value) const {
  auto sink = make_node<LossSink>(planned_->model.device, planned_->model.output_counts());
  const at::AutoGradMode with_grad(true);
  at::Tensor result;
  {
    Tensors x = step.output_for_loss();
    const std::vector<bool>& needs_grad = planned_->model.stages.back().traits.output_needs_grad;
    for (size_t e = 0; e < x.size(); ++e) {
      x[e] = x[e].detach();
      if (needs_grad[e]) {
        torch::autograd::set_history(x[e], sink.pointer);
      } else {
        sink.node->add_input_metadata(x[e]);
      }
    }
    result = loss(x);
  }
  if (!result.defined() || result.numel() != 1 || !result.requires_grad()) {
    throw InputError("the loss must return a tensor of one element that depends on the output");
  }
  result.backward();
  if (!sink.node->reached) throw InputError("the loss does not depend on the output");
  if (value.defined()) {
    const at::NoGradGuard no_grad;
    value.copy_(result.detach().reshape(value.sizes()));
  }
  step.set_output_gradients(std::move(sink.node->gradients.at(0)));
}

void PipelinePart::run_back(int64_t micro_batch, const Loss& loss, const at::Tensor& value,
                            bool split) {
  Flight& mine = flight(micro_batch);
  if (!mine.step) throw InputError(fmt::format("micro-batch {} has no forward", micro_batch));
  const Way& own = way(micro_batch);
  const size_t end = own.program->entries().size();
  if (split) mine.step->split_backwards();
  if (has_loss_) {
    if (!loss) throw InputError("the last part of a pipeline needs the loss");
    const size_t at = own.program->loss();
    mine.step->advance(own.backward_begin, at);
    run_loss(*mine.step, loss, value);
    mine.step->advance(at + 1, end);
  } else {
    Tensors gradients;
    size_t next = 0;
    for (const at::Tensor& output : outputs_) {
      gradients.push_back(output.requires_grad() ? std::move(mine.gradient.at(next++))
                                                 : at::Tensor());
    }
    mine.gradient.clear();
    mine.step->set_output_gradients(std::move(gradients));
    mine.step->advance(own.backward_begin, end);
  }
  if (split) mine.later = mine.step->take_later_work();
  Tensors inputs = mine.step->take_input_gradients();
  mine.step.reset();
  for (size_t e = 0; e < inputs.size(); ++e) {
    if (!inputs_[e].requires_grad()) continue;
    if (!inputs[e].defined()) {
      throw InputError(fmt::format("the part gives no gradient for its input {}", e));
    }
    mine.gradient_message.push_back(inputs[e].contiguous());
  }
}

void PipelinePart::weight_gradient(int64_t micro_batch) {
  Flight& mine = flight(micro_batch);
  if (!mine.later) {
    throw InputError(fmt::format("micro-batch {} has no input gradient", micro_batch));
  }
  GradientBook book(planned_->model.parameters.size());
  for (auto& [stage, work] : *mine.later) {
    const Tensors input = std::move(work.input);  // until the stage is done
    run_weight_gradient(planned_->model.stages[stage], std::move(work), planned_->model.parameters,
                        book);
    add_gradients(planned_->model.stages[stage].parameters, book);
  }
  mine.later.reset();
}

void PipelinePart::add_gradients(const std::vector<size_t>& positions, GradientBook& book) const {
  const at::NoGradGuard no_grad;
  for (const size_t p : positions) {
    at::Tensor gradient = std::move(book[p]);
    book[p].reset();
    if (!gradient.defined()) continue;
    at::Tensor& sum = planned_->model.parameters[p].mutable_grad();
    if (sum.defined()) {
      sum.add_(gradient);
    } else {
      sum = std::move(gradient);
    }
  }
}

}  // namespace reprise::runtime::internal::chain
