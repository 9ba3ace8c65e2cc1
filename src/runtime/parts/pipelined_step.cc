#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <mutex>
#include <utility>

#include "reprise/check/pipeline.h"
#include "reprise/io/json.h"
#include "reprise/model/errors.h"
#include "reprise/runtime/allocator.h"
#include "reprise/runtime/peer_error.h"
#include "reprise/runtime/pipeline.h"
#include "runtime/device/tensor_bytes.h"
#include "runtime/distributed/ranks.h"
#include "runtime/distributed/shared_plan.h"
#include "runtime/parts/facts.h"
#include "runtime/parts/problem.h"
#include "runtime/parts/walk.h"
#include "runtime/session/session.h"

namespace reprise::runtime {

namespace parts = internal::parts;
using internal::chain::PipelinePart;
using internal::distributed::Ranks;
using parts::PartFacts;
using parts::RankFacts;

namespace {

const c10::Device kCpu(c10::kCPU);

// Returns the tensors without memory beside them: a slice of a batch is copied.
Tensors alone(const Tensors& tensors) {
  Tensors all;
  for (const at::Tensor& tensor : tensors) {
    const bool whole = tensor.storage().nbytes() == tensor.nbytes();
    all.push_back(whole ? tensor : tensor.detach().clone());
  }
  return all;
}

// Returns the tensors of each micro-batch.
std::vector<Tensors> cut(const Tensors& tensors, const char* what, int64_t micro_batches) {
  std::vector<Tensors> all(static_cast<size_t>(micro_batches));
  for (const at::Tensor& tensor : tensors) {
    if (tensor.dim() == 0 || tensor.size(0) % micro_batches != 0) {
      throw InputError(
          fmt::format("{} of {} rows cannot be cut into {} equal micro-batches along its first "
                      "dimension",
                      what, tensor.dim() == 0 ? 0 : tensor.size(0), micro_batches));
    }
    const int64_t rows = tensor.size(0) / micro_batches;
    for (int64_t b = 0; b < micro_batches; ++b) {
      all[b].push_back(tensor.narrow(0, b * rows, rows));
    }
  }
  return all;
}

}  // namespace

// Without ranks, this process has all parts.
struct PipelinedStep::State : internal::session::Session {
  PipelinedStepOptions options;
  parts::OwnParts own;
  std::vector<at::Tensor> parameters;  // of this rank
  std::vector<PartFacts> facts;        // of all parts
  at::ScalarType loss_type = at::kFloat;

  Pipeline problem;
  PipelinePlan plan;
  Bytes beside;  // the bytes beside the parts that the plan was made for
  int64_t steps = 0, plans = 0;
  std::recursive_mutex turns;  // calls of several threads
  std::optional<PipelinedStepReport> report;

  int rank() const { return ranks ? ranks->rank() : 0; }
  int size() const { return ranks ? ranks->size() : 1; }
  int32_t last() const { return static_cast<int32_t>(facts.size()) - 1; }
  const DevicePlan& mine() const { return plan.devices.at(rank()); }

  std::vector<std::string> exchange(const std::string& text, const char* what) const {
    return ranks ? ranks->exchange(text, what) : std::vector<std::string>{text};
  }

  void measure(std::vector<std::vector<Stage>> models);
  Bytes level() const;
  void make_plan(Bytes level);
  // Puts a plan in force that all ranks know. Throws InputError if it is not valid for the problem.
  void adopt(Pipeline asked, PipelinePlan made);
  Bytes predicted(Bytes level) const {
    return Bytes(mine().peak.count() + level.count() - beside.count());
  }
  void agree(Bytes level);
  void check_gradients() const;
  at::Tensor room_for_losses() const {
    return at::zeros({options.micro_batches}, at::TensorOptions(loss_type));
  }
  at::Tensor step(const Tensors& inputs, const Tensors& targets);
};

// Each part is measured when the tensors that come to it are known, one part after the other.
void PipelinedStep::State::measure(std::vector<std::vector<Stage>> models) {
  for (const std::string& count : exchange(std::to_string(models.size()), "its parts")) {
    if (count == std::to_string(models.size())) continue;
    throw InputError(
        fmt::format("each rank has as many parts as the others, and this one has {} "
                    "and another one {}",
                    models.size(), count));
  }
  const auto total = static_cast<int32_t>(models.size()) * size();
  std::string boundary;
  for (int32_t q = 0; q < total; ++q) {
    std::string outputs;
    if (q % size() == rank()) {
      Tensors sample = q == 0 ? alone(options.sample) : Tensors();
      if (q > 0) {
        parts::Boundary before = parts::parse_boundary(boundary);
        sample = std::move(before.sample);
        if (options.input_structure) options.input_structure(q, before.structure);
      }
      Loss loss;
      if (q == total - 1) {
        loss = [this](const Tensors& last_outputs) {
          at::Tensor value = options.loss(last_outputs, options.target);
          if (value.defined()) loss_type = value.scalar_type();
          return value;
        };
      }
      auto& stages = models[q / size()];
      auto part = std::make_unique<PipelinePart>(std::move(stages), sample, loss,
                                                 MeasureOptions{.name = fmt::format("part {}", q)},
                                                 options.forget_error);
      outputs = parts::boundary_text(part->outputs(),
                                     options.output_structure ? options.output_structure(q) : "");
      own.emplace(q, std::move(part));
    }
    boundary = exchange(outputs, "what its part hands over").at(q % size());
  }
  std::vector<PartFacts> found;
  for (const auto& [number, part] : own) found.push_back(parts::facts_of(*part, number));
  const std::vector<std::string> texts = exchange(parts::to_text(found), "its measured parts");
  facts.resize(total);
  for (size_t r = 0; r < texts.size(); ++r) {
    std::vector<PartFacts> told = parts::parse_parts(texts[r]);
    for (size_t k = 0; k < told.size(); ++k) facts[r + k * texts.size()] = std::move(told[k]);
  }
}

Bytes PipelinedStep::State::level() const {
  int64_t bytes = memory_count(kCpu).live;
  for (const auto& [number, part] : own) bytes += part->uncounted();
  return Bytes(bytes);
}

// Plans for these live bytes at the beginning of a step.
void PipelinedStep::State::make_plan(Bytes level) {
  std::vector<RankFacts> told;
  for (const std::string& text :
       exchange(to_text(parts::facts_of(level, options.budget)), "its live bytes")) {
    told.push_back(parts::parse_rank(text));
  }
  Pipeline asked = parts::problem_of(facts, told,
                                     {.name = options.name,
                                      .micro_batches = options.micro_batches,
                                      .link_bytes_per_second = options.link_bytes_per_second});
  const auto search = [&] {
    return parts::plan_of(
        asked, facts, told,
        {.budget = options.budget, .planner = options.planner, .time_limit = options.time_limit});
  };
  PipelinePlan made;
  if (ranks) {
    const std::string text = ranks->by_first("its plan", [&] { return to_json(search()); });
    made = parse_pipeline_plan(text, "the plan of rank 0");
  } else {
    made = search();
  }
  adopt(std::move(asked), std::move(made));
  const Bytes inputs = rank() == 0 ? parts::input_bytes(facts, options.micro_batches) : Bytes(0);
  beside = std::max(level, inputs);
  // A share is of the first plan's baseline: memory that comes later does not raise it.
  if (!options.budget.unlimited()) options.budget = mine().budget;
}

void PipelinedStep::State::adopt(Pipeline asked, PipelinePlan made) {
  std::string objection;
  for (const Violation& violation : verify(asked, made)) objection += violation.message + "; ";
  if (ranks) internal::distributed::agree_on_plan(*ranks, objection);
  if (!objection.empty()) throw InputError("the plan is not valid: " + objection);
  for (const auto& [number, part] : own) part->use(made, static_cast<size_t>(number));
  problem = std::move(asked);
  plan = std::move(made);
  ++plans;
}

// Plans again if the plan in force needs too much memory on some rank.
void PipelinedStep::State::agree(Bytes level) {
  const bool fits =
      options.budget.unlimited() || predicted(level) <= options.budget.resolve(Bytes(0));
  const std::vector<std::string> all = exchange(fits ? "fits" : "", "its word on the plan");
  if (std::any_of(all.begin(), all.end(), [](const std::string& s) { return s.empty(); })) {
    make_plan(level);
  }
}

void PipelinedStep::State::check_gradients() const {
  for (const at::Tensor& parameter : parameters) {
    if (!parameter.grad().defined()) continue;
    throw InputError(
        "a parameter has a gradient already, and a step of a pipeline makes it anew: call "
        "optimizer.zero_grad() before the step");
  }
}

at::Tensor PipelinedStep::State::step(const Tensors& inputs, const Tensors& targets) {
  const auto begun = std::chrono::steady_clock::now();
  check_gradients();
  const bool has_last = own.count(last()) != 0;
  if (own.count(0) != 0 && inputs.empty()) {
    throw InputError("the rank of the first part needs the inputs of the step");
  }
  parts::StepData data{.inputs = cut(inputs, "an input", options.micro_batches),
                       .targets = cut(targets, "a target", options.micro_batches)};
  if (has_last) data.losses = room_for_losses();
  at::Tensor losses = data.losses;
  const Bytes now = level();
  agree(now);
  const int64_t uncounted = now.count() - memory_count(kCpu).live;
  std::optional<int64_t> limit;
  if (!options.budget.unlimited()) {
    limit = options.budget.resolve(Bytes(0)).count() - uncounted;
  }
  int64_t peak = 0;
  try {
    for (const auto& [number, part] : own) part->begin_step(limit);
    reset_peak(kCpu);
    parts::PartWalk(ranks.get(), own, last(), options.loss, std::move(data)).run(mine().order);
    peak = memory_count(kCpu).peak + uncounted;
  } catch (...) {
    if (ranks) ranks->abandon(nullptr);
    for (const auto& [number, part] : own) part->abort_step();
    throw;
  }
  for (const auto& [number, part] : own) part->end_step();
  ++steps;
  report = PipelinedStepReport{
      .predicted_peak = predicted(now),
      .measured_peak = Bytes(peak),
      .predicted_time = plan.time,
      .measured_time = Nanos(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                 std::chrono::steady_clock::now() - begun)
                                 .count()),
      .steps = steps,
      .plans = plans};
  if (!options.budget.unlimited()) report->budget = options.budget.resolve(Bytes(0));
  return losses;
}

PipelinedStep::PipelinedStep(std::unique_ptr<State> state) : state_(std::move(state)) {}
PipelinedStep::~PipelinedStep() = default;
PipelinedStep::PipelinedStep(PipelinedStep&&) noexcept = default;
PipelinedStep& PipelinedStep::operator=(PipelinedStep&&) noexcept = default;

at::Tensor PipelinedStep::run(const Tensors& inputs, const Tensors& targets) {
  const std::lock_guard turn(state_->turns);
  return state_->telling([&] { return state_->step(inputs, targets); });
}

void PipelinedStep::use(PipelinePlan plan) {
  const std::lock_guard turn(state_->turns);
  if (state_->ranks) {
    PipelinePlan compared = plan;
    compared.search.reset();  // Each rank may have searched for the plan by itself.
    state_->ranks->require_equal(
        text_sha256(to_json(compared)), "the plan that it was given", [](const auto& found) {
          return fmt::format("rank {} was given another plan than rank 0: give all ranks one plan",
                             found.ranks);
        });
  }
  state_->adopt(state_->problem, std::move(plan));
}

void PipelinedStep::tell_failure(const std::string& reason) noexcept {
  if (state_ && state_->ranks) state_->ranks->tell(reason);
}

const Pipeline& PipelinedStep::problem() const { return state_->problem; }
const PipelinePlan& PipelinedStep::plan() const { return state_->plan; }

const PipelinedStepReport& PipelinedStep::last_step() const {
  if (!state_->report) throw InputError("no step of the pipeline has run yet");
  return *state_->report;
}

std::vector<std::string> PipelinedStep::not_split() const {
  std::vector<std::string> all;
  for (const PartFacts& part : state_->facts) {
    all.insert(all.end(), part.not_split.begin(), part.not_split.end());
  }
  return all;
}

PipelinedStep pipeline(std::vector<std::vector<Stage>> parts, PipelinedStepOptions options) {
  auto state = std::make_unique<PipelinedStep::State>();
  install_cpu_allocator();
  if (!options.group.empty()) {
    state->ranks = std::make_shared<Ranks>(options.group, options.timeout);
  }
  const bool first = state->rank() == 0, last = state->rank() == state->size() - 1;
  state->options = std::move(options);
  PipelinedStepOptions& own = state->options;
  state->telling([&] {
    if (own.micro_batches < 1) {
      throw InputError(fmt::format("there is at least one micro-batch, not {}", own.micro_batches));
    }
    if (own.link_bytes_per_second < 1) throw InputError("a link carries at least a byte a second");
    if (parts.empty()) throw InputError("a rank of a pipeline has at least one part");
    if (first && own.sample.empty()) {
      throw InputError("the rank of the first part needs the sample of a micro-batch");
    }
    if (last && !own.loss) throw InputError("the rank of the last part needs the loss");
    for (const std::vector<Stage>& part : parts) {
      for (const Stage& stage : part) {
        if (!stage.module) continue;
        for (const at::Tensor& parameter : stage.module->parameters()) {
          if (!parameter.is_cpu()) {
            throw InputError(fmt::format("the parts of a pipeline run on the CPU, and one is on {}",
                                         parameter.device().str()));
          }
          state->parameters.push_back(parameter);
        }
      }
    }
    state->measure(std::move(parts));
    // The whole batch lies here during a step, where the sample lies now.
    int64_t more = 0;
    for (const Tensors* held : {&own.sample, &own.target}) {
      for (const at::Tensor& tensor : *held) {
        const auto bytes = static_cast<int64_t>(tensor.nbytes()) * own.micro_batches;
        more += std::max<int64_t>(0, bytes - static_cast<int64_t>(tensor.storage().nbytes()));
      }
    }
    const at::Tensor losses = last ? state->room_for_losses() : at::Tensor();
    state->make_plan(state->level() + Bytes(more));
  });
  own.sample.clear();
  own.target.clear();
  return PipelinedStep(std::move(state));
}

}  // namespace reprise::runtime
