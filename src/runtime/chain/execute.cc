#include "runtime/chain/execute.h"

#include <fmt/format.h>

#include <algorithm>

#include "reprise/model/errors.h"
#include "reprise/runtime/allocator.h"
#include "runtime/chain/loss_sink.h"
#include "runtime/device/backward_queue.h"

namespace reprise::runtime::internal::chain {

using device::block_serial;
using device::counted_bytes_of;
using device::DatedScope;
using device::drain_backward_queue;
using device::drop_dead;
using device::MadeStorages;
using device::StepMeter;
using device::storages_taken_since;
using device::WeakStorage;
using state::AutocastScope;
using state::RandomState;
using transfer::Carrier;

ChainStep::ChainStep(std::shared_ptr<PlannedModel> planned, std::vector<Tensors> inputs)
    : planned_(std::move(planned)),
      program_(planned_->program),
      passes_(planned_->passes),
      places_(planned_->places),
      activations_(planned_->model.boundaries()),
      gradients_(activations_.size()),
      kept_(places_.stages()),
      random_(places_.stages()),
      wrote_still_(places_.stages()),
      book_(planned_->model.parameters.size()),
      random_before_(planned_->model.device),
      random_now_(random_before_),
      autocast_(planned_->model.device),
      began_(block_serial(planned_->model.device)),
      number_(++planned_->last_step) {
  const PreparedModel& model = planned_->model;
  for (size_t b = 0; b < model.branches.size(); ++b) {
    std::vector<int64_t>& versions = input_versions_.emplace_back();
    for (const at::Tensor& tensor : inputs[b]) versions.push_back(version_of(tensor));
    activations_[model.input_of(model.branches[b].first)] = std::move(inputs[b]);
  }
  for (const at::Tensor& parameter : model.parameters) versions_.push_back(parameter._version());
  if (!planned_->moves.empty()) moved_.emplace(planned_->moves, planned_->memory);
}

void ChainStep::measure_with(StepMeter* meter) {
  meter_ = meter;
  passes_ = std::make_shared<const Passes>(planned_->model.stages);
}

template <class Work>
void ChainStep::guarded(Work&& work) {
  try {
    work();
  } catch (...) {
    // Everything is given back first: the memory that stays must fit beside the caller's next step.
    done_ = true;
    if (moved_) moved_->carrier().end();  // copies read and write the memory of what follows
    activations_.clear();
    gradients_.clear();
    kept_.clear();
    kept_tail_.reset();
    shared_gradients_.clear();
    book_.clear();
    later_.clear();
    random_before_.restore();
    if (number_ == planned_->last_step) planned_->buffers.undo_step();
    drain_backward_queue();
    throw;
  }
}

Tensors ChainStep::forward() {
  planned_->buffers.begin_step();
  Tensors outputs;
  guarded([&] {
    walk(0, program_->loss());
    outputs = output_for_loss();
    if (planned_->model.tail) outputs = run_tail(std::move(outputs));
  });
  return outputs;
}

Tensors ChainStep::output_for_loss() {
  const PreparedModel& model = planned_->model;
  Tensors outputs;
  for (size_t b = 0; b < model.branches.size(); ++b) {
    Tensors& last = activations_[model.output_of(model.end_of(b) - 1)];
    outputs.insert(outputs.end(), last.begin(), last.end());
    if (planned_->chain.loss.consumes) last.clear();
  }
  return outputs;
}

void ChainStep::begin_in_pieces(TakeGradients take) {
  take_gradients_ = std::move(take);
  passes_ = std::make_shared<const Passes>(planned_->model.stages);
  planned_->buffers.begin_step();
}

void ChainStep::advance(size_t begin, size_t end) {
  guarded([&] {
    random_now_ = RandomState(planned_->model.device);  // Other steps may have drawn numbers.
    walk(begin, end);
  });
}

Tensors ChainStep::take_input_gradients() {
  done_ = true;
  Tensors gradients = std::move(gradients_[planned_->model.input_of(0)]);
  gradients.resize(planned_->model.stages[0].traits.input_needs_grad.size());
  return gradients;
}

Tensors ChainStep::run_tail(Tensors inputs) {
  const PreparedModel& model = planned_->model;
  auto [outputs, kept] = run_keep(*model.tail, inputs, model.parameters);
  check_returned(*model.tail, outputs.size(), &kept.roots);
  kept_tail_ = std::move(kept);
  return std::move(outputs);
}

// Returns the gradients of the last activations, by branch.
std::vector<Tensors> ChainStep::loss_gradients(Tensors output_gradients) {
  const PreparedModel& model = planned_->model;
  if (model.tail) {
    Kept kept = std::move(*kept_tail_);
    kept_tail_.reset();
    output_gradients = run_backward(*model.tail, std::move(kept), std::move(output_gradients),
                                    model.parameters, book_)
                           .inputs;
  }
  return apart(std::move(output_gradients), model.output_counts());
}

Tensors ChainStep::backward(Tensors output_gradients) {
  if (done_) {
    throw InputError(
        "this step's backward has run already and its memory is given back; run forward again "
        "(retain_graph=true does not reach into a planned step)");
  }
  Tensors result;
  guarded([&] {
    const PreparedModel& model = planned_->model;
    std::vector<Tensors> arrived = loss_gradients(std::move(output_gradients));
    shared_gradients_ = shared_between(arrived);
    for (size_t b = 0; b < arrived.size(); ++b) {
      gradients_[model.output_of(model.end_of(b) - 1)] = std::move(arrived[b]);
    }
    walk(program_->loss() + 1, program_->entries().size());
    for (size_t b = arrived.size(); b-- > 0;) {
      Tensors& own = gradients_[model.input_of(model.branches[b].first)];
      own.resize(model.branches[b].inputs);
      for (at::Tensor& gradient : own) result.push_back(std::move(gradient));
    }
    for (at::Tensor& gradient : book_) result.push_back(std::move(gradient));
  });
  done_ = true;
  activations_.clear();
  shared_gradients_.clear();
  if (moved_) moved_->carrier().end();
  return result;
}

void ChainStep::walk(size_t begin, size_t end) {
  if (meter_ != nullptr) {
    meter_->execute(*program_, begin, end, *this);
  } else {
    execute(*program_, begin, end, *this);
  }
}

void ChainStep::undo() const {
  if (number_ != planned_->last_step) return;
  random_before_.restore();
  planned_->buffers.undo_step();
}

void ChainStep::run(const RunAction& step) {
  if (!places_.is_forward(step.op)) {
    run_backward_op(places_.stage_of_backward(step.op), static_cast<size_t>(step.variant));
    return;
  }
  const size_t stage = static_cast<size_t>(step.op);
  run_forward_op(stage, step);
  const std::optional<size_t> kept = run_of(stage, step).option;
  if (!kept) return;
  // The input is dropped only now, because the code that watches or replays a run reads it.
  const size_t option = *kept;
  const StageOption& ran = planned_->chain.stages[stage].options[option];
  if (ran.consumes_input && !ran.reads_input) activations_[planned_->model.input_of(stage)].clear();
  note_moving(stage, places_.saved(stage, option), std::move(saved_storages_));
  saved_storages_.clear();
}

ForwardRun ChainStep::run_of(size_t stage, const RunAction& step) const {
  return forward_run(planned_->chain.stages[stage], step.variant);
}

void ChainStep::check_unchanged(size_t stage) const {
  const char* const advice =
      " was changed in place between the forward pass and the backward pass, "
      "which runs the stage again; change it after backward()";
  const PreparedModel& model = planned_->model;
  const Tensors& input = activations_[model.input_of(stage)];
  const std::vector<int64_t>& versions = input_versions_[model.branch_of(stage)];
  for (size_t e = 0; model.begins(stage) && e < versions.size(); ++e) {
    if (version_of(input[e]) == versions[e]) continue;
    throw InputError("the input of the model" + std::string(advice));
  }
  const PreparedStage& prepared = model.stages[stage];
  for (size_t p : prepared.parameters) {
    if (model.parameters[p]._version() == versions_[p]) continue;
    throw InputError("a parameter of stage '" + prepared.stage.name + "'" + advice);
  }
}

void ChainStep::run_forward_op(size_t stage, const RunAction& step) {
  StepBuffers& buffers = planned_->buffers;
  if (step.first) {
    buffers.before_first_run(stage);
    run_watched(stage, run_of(stage, step).option);
    return;
  }
  const PreparedStage& prepared = planned_->model.stages[stage];
  if (wrote_still_[stage]) {
    throw StageChanged(prepared.stage.name, "writes a buffer", false);
  }
  check_unchanged(stage);
  // The run has the autocast state of the forward pass. The gradients' kernels have the state in
  // which the caller runs the backward pass, as in plain training.
  AutocastScope autocast(autocast_, planned_->model.device);
  std::optional<RandomState> current;
  if (random_[stage]) current.emplace(planned_->model.device);
  const auto as_at_first = [&](const auto& work) {
    if (random_[stage]) random_[stage]->restore();
    buffers.begin_rerun(stage, number_ == planned_->last_step);
    auto put_back = [&] {
      buffers.end_rerun(stage);
      if (current) current->restore();
    };
    try {
      work();
    } catch (...) {
      put_back();
      throw;
    }
    put_back();
  };
  const ForwardRun run = run_of(stage, step);
  bool done = false;
  if (run.stops) as_at_first([&] { done = run_early(stage, *run.option); });
  if (!done) as_at_first([&] { run_forward(stage, run.option); });
  if (run.stops) activations_[planned_->model.output_of(stage)].clear();
}

// Returns false if the stage has to run as a whole: it runs other operations by now.
bool ChainStep::run_early(size_t stage, size_t option) {
  const PreparedModel& model = planned_->model;
  if (moved_ && moved_->moves(places_.saved(stage, option))) return false;
  std::optional<Kept> before;
  if (passes_->of(stage).begin < stage) before = kept_[stage - 1];
  std::optional<Kept> kept =
      run_stopped(model.stages[stage], activations_[model.input_of(stage)], model.parameters,
                  planned_->saved_form[stage][option], planned_->noted[stage][option], model.device,
                  pass_before(stage));
  if (kept) {
    check_returned(model.stages[stage], kept->roots.size(), &kept->roots);
    kept_[stage] = std::move(kept);
    return true;
  }
  if (before) kept_[stage - 1] = std::move(before);
  return false;
}

void ChainStep::run_forward(size_t stage, std::optional<size_t> option) {
  const PreparedModel& model = planned_->model;
  const PreparedStage& prepared = model.stages[stage];
  if (!option) {
    const DatedScope dated(moved_ ? model.device : c10::Device(c10::kCPU));
    const uint64_t since = block_serial(model.device);
    Tensors& output = activations_[model.output_of(stage)];
    output = run_fast(prepared, activations_[model.input_of(stage)], model.parameters);
    note_moving(stage, places_.output(stage), storages_taken_since(output, model.device, since));
  } else {
    run_kept(stage, *option);
  }
  check_outputs(stage);
}

void ChainStep::run_kept(size_t stage, size_t number) {
  const PreparedModel& model = planned_->model;
  const StageOption& option = planned_->chain.stages[stage].options[number];
  const ValueIndex saved = places_.saved(stage, number);
  const Tensors& input = activations_[model.input_of(stage)];
  const DatedScope dated(moved_ ? model.device : c10::Device(c10::kCPU));
  const uint64_t since = block_serial(model.device);
  std::optional<MadeStorages> made;
  if (moved_ && moved_->moves(saved)) made.emplace(model.device);
  auto [outputs, kept] = run_keep(model.stages[stage], input, model.parameters,
                                  planned_->saved_form[stage][number], pass_before(stage));
  if (made) {
    saved_storages_ = made->alive_without(outputs);
    made.reset();
    // If the run consumes its input, the part of it that autograd holds counts as saved.
    if (option.consumes_input && !option.reads_input) {
      const auto given = storages_taken_since(input, model.device, began_);
      saved_storages_.insert(saved_storages_.end(), given.begin(), given.end());
    }
  }
  Tensors& output = activations_[model.output_of(stage)];
  output = std::move(outputs);
  kept_[stage] = std::move(kept);
  note_moving(stage, places_.output(stage), storages_taken_since(output, model.device, since));
}

// Notes the memory of a value that a run has just written, if the plan moves it.
void ChainStep::note_moving(size_t stage, ValueIndex value, std::vector<WeakStorage> storages) {
  if (!moved_ || !moved_->moves(value)) return;
  drop_dead(storages);
  const int64_t bytes = counted_bytes_of(storages);
  const int64_t planned = planned_->value_bytes[value].count();
  // Fewer bytes are those of memory of a module, which counts apart and stays where it is.
  if (bytes > planned) {
    planned_->outdated = true;
    throw StageChanged(
        planned_->model.stages[stage].stage.name,
        fmt::format("made {} bytes that move away, and {} were planned", bytes, planned), true);
  }
  moved_->set(value, std::move(storages));
}

// Runs a stage for the first time in the step and checks what a plan must not take for granted.
// Code may depend on attributes.
void ChainStep::run_watched(size_t stage, std::optional<size_t> option) {
  const PreparedStage& prepared = planned_->model.stages[stage];
  const auto sum = [](const std::vector<at::Tensor>& tensors) {
    int64_t versions = 0;
    for (const at::Tensor& tensor : tensors) versions += version_of(tensor);
    return versions;
  };
  const Tensors& given = activations_[planned_->model.input_of(stage)];
  const int64_t input = sum(given), still = sum(prepared.traits.still);
  if (prepared.traits.random) random_[stage] = random_now_ = RandomState(planned_->model.device);
  run_forward(stage, option);
  if (!prepared.traits.copies_input && sum(given) != input) {
    planned_->outdated = true;
    throw StageChanged(prepared.stage.name, "changes its input in place", false);
  }
  wrote_still_[stage] = sum(prepared.traits.still) != still;
  if (wrote_still_[stage]) planned_->outdated = true;
  if (!prepared.traits.random && !random_now_.is_now()) random_[stage] = random_now_;
  if (random_[stage]) random_now_ = RandomState(planned_->model.device);
}

void ChainStep::check_outputs(size_t stage) const {
  const PreparedModel& model = planned_->model;
  check_returned(model.stages[stage], activations_[model.output_of(stage)].size(),
                 kept_[stage] ? &kept_[stage]->roots : nullptr);
}

void ChainStep::check_returned(const PreparedStage& prepared, size_t returned,
                               const std::vector<torch::autograd::Edge>* roots) const {
  const std::vector<bool>& needs_grad = prepared.traits.output_needs_grad;
  const bool same_number = returned == needs_grad.size();
  bool same = same_number;
  for (size_t e = 0; roots != nullptr && same && e < roots->size(); ++e) {
    same = (*roots)[e].is_valid() == needs_grad[e];
  }
  if (same) return;
  planned_->outdated = true;
  throw StageChanged(prepared.stage.name,
                     same_number ? "returns tensors that have gradients, or have none"
                                 : "returns another number of tensors",
                     true);
}

// Returns the pass that the kept run of the stage goes on with.
Kept ChainStep::pass_before(size_t stage) {
  const Pass& pass = passes_->of(stage);
  if (stage == pass.begin) return begin_pass(pass.parameters, planned_->model.parameters);
  Kept kept = std::move(*kept_[stage - 1]);
  kept_[stage - 1].reset();
  return kept;
}

void ChainStep::run_backward_op(size_t stage, size_t option) {
  const PreparedModel& model = planned_->model;
  const Pass& pass = passes_->of(stage);
  if (stage + 1 != pass.end) return;  // it ran with the last stage of the pass
  const auto give_up = [&](size_t s, size_t o) {
    // From here on only autograd holds the values that the run consumes.
    const StageOption& ran = planned_->chain.stages[s].options[o];
    if (ran.reads_output) activations_[model.output_of(s)].clear();
    if (ran.reads_input && ran.consumes_input) activations_[model.input_of(s)].clear();
  };
  Kept kept = std::move(*kept_[stage]);
  kept_[stage].reset();
  if (const WeightPart* part = splits_ ? planned_->weight_part(stage, option) : nullptr) {
    later_.emplace_back(stage, WeightWork());
    if (part->reads_input && planned_->chain.stages[stage].options[option].reads_input) {
      later_.back().second.input = activations_[model.input_of(stage)];
    }
    give_up(stage, option);
    run_first_half(stage, std::move(kept));
    return;
  }
  give_up(stage, option);
  Tensors& arriving = gradients_[model.output_of(stage)];
  StageGradients made = run_backward(model.stages[stage], std::move(kept), std::move(arriving),
                                     model.parameters, book_, [&](size_t boundary) {
                                       for (ValueIndex value : pass.freed[boundary]) free(value, 0);
                                       give_up(pass.begin + boundary, 0);
                                     });
  gradients_[model.input_of(pass.begin)] = std::move(made.inputs);
  arriving.clear();
  if (take_gradients_) take_gradients_(model.stages[stage].parameters, book_);
}

// The work of the second half is the last one in the list, and has the input of the stage if that is
// to stay.
void ChainStep::run_first_half(size_t stage, Kept kept) {
  const PreparedModel& model = planned_->model;
  Tensors& arriving = gradients_[model.output_of(stage)];
  InputGradients made = run_input_gradient(model.stages[stage], std::move(kept),
                                           std::move(arriving), model.parameters);
  arriving.clear();
  gradients_[model.input_of(stage)] = std::move(made.inputs);
  made.later.input = std::move(later_.back().second.input);
  later_.back().second = std::move(made.later);
}

Carrier& ChainStep::carrier() {
  if (!moved_) throw InternalError("a step moves a value that its plan does not move");
  return moved_->carrier();
}

void ChainStep::copy(const CopyAction& copy) { carrier().copy(copy); }
void ChainStep::wait(ValueIndex value, int32_t memory) { carrier().wait(value, memory); }
void ChainStep::free(ValueIndex value, int32_t memory) {
  if (memory > 0) return carrier().free(value, memory);
  if (moved_ && moved_->leave(value)) return;
  const Places::Place& place = places_.of(value);
  switch (place.kind) {
    case Places::Kind::kActivation:
      activations_[place.position].clear();
      return;
    case Places::Kind::kGradient:
      gradients_[place.position].clear();
      return;
    case Places::Kind::kSaved:
      kept_[place.position].reset();
      return;
    case Places::Kind::kWeightGradients:
      throw InternalError("a plan frees the weight gradients of a stage");
  }
}

}  // namespace reprise::runtime::internal::chain
