// Train any model inside a byte budget, operation by operation: record one whole training step, plan it,
// replay it.
//
//   auto step = reprise::runtime::capture([&](const Tensors& in) {
//     auto loss = torch::nn::functional::cross_entropy(model->forward(in[0]), in[1]);
//     loss.backward();
//     return loss;
//   }, {x, y});
//   step.plan({.budget = "700 MiB"});
//   at::Tensor loss = step.run({x, y});   // fills .grad, as the function does, to the last bit
#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "reprise/model/graph.h"
#include "reprise/model/profile.h"
#include "reprise/model/runlog.h"
#include "reprise/plan/plan.h"
#include "reprise/runtime/alternatives.h"
#include "reprise/runtime/measure.h"
#include "reprise/runtime/optimizer.h"
#include "reprise/runtime/remat.h"

namespace reprise::runtime {

// What run() does when its inputs, or the state that the step was captured in, are other ones.
enum class OnMiss {
  kRefuse,     // InputError that says what differs
  kRecapture,  // capture, measure and plan again, with the options as before
};

struct CaptureOptions {
  // Their train flags, parameters and buffers must stay what they were: run() compares. Operations are named
  // after the children that they belong to ("12:gelu@blocks.0.mlp"). Optional; the step finds the memory
  // that it uses by itself; gradients that it drops (zero_grad()) without reading their parameters, only here.
  std::vector<std::shared_ptr<torch::nn::Module>> modules = {};
  OnMiss on_miss = OnMiss::kRefuse;
  MeasureOptions measure = {.name = "step"};
  // What the planner may run in place of the operations as they were captured. By default everything that leaves
  // the same bits.
  AlternativeOptions alternatives = {};
  // per_parameter(optimizer): its step becomes part of this one. Each parameter is updated when its gradient
  // is complete and nothing in the step needs the parameter any more, and the gradient is given back
  // there. Equal to the bit to the optimizer's own step behind this one. Gradients must not be there before,
  // and are not there afterwards; nothing can look at all of them (clipping by their common norm).
  std::shared_ptr<ParameterOptimizer> optimizer = {};
};

struct StepPlanOptions {
  // All device bytes during a step, as in RematOptions. Default: no limit, plain training.
  Budget budget = {};
  std::string planner = "graph";
  // Of all searches that plan() makes, together. The first steps may take as long again: to plan for a block in
  // which all memory has its place.
  Nanos time_limit{10'000'000'000};
  // The least exact alternatives that the plan may use, of those that the step was captured with.
  Exactness allow = Exactness::kApproximate;
  int threads = 0;      // 0: as many as the machine has
  bool enforce = true;  // on CPU: a request beyond the budget throws BudgetError
  // On CPU: from the second step on, all memory of the step lies in one block at planned places.
  bool arena = true;
  Observer observer = {};
};

// Of the last run.
struct CapturedStepReport {
  Bytes budget;          // the largest Bytes when there is no limit
  Bytes predicted_peak;  // live bytes; equal to measured_peak on CPU, to the byte
  Bytes measured_peak;
  // Of the memory of the step itself; 0 while there is no arena.
  Bytes arena_height;            // of the block
  Bytes arena_live_bytes;        // the least that any placement needs
  int64_t served = 0;            // allocations at their planned places
  int64_t fallbacks = 0;         // allocations that the heap served although there is an arena
  int64_t steps = 0, plans = 0;  // so far

  bool operator==(const CapturedStepReport&) const = default;
};

using StepFunction = std::function<Tensors(const Tensors& inputs)>;

// A training step that was recorded. What run() computes is what the function computes, to the bit unless
// CaptureOptions::alternatives allows less: gradients of all leaf tensors that the step reads (added to what is in
// .grad, or put there), the tensors that it returns (without history), buffers, random state. Numbers of the host
// language (a learning rate, a dropout probability) are those of the capture. Hooks on parameters are not called.
//
// Not thread-safe. Between two steps it holds the arena, in which the last gradients lie.
class CapturedStep {
 public:
  CapturedStep(StepFunction step, Tensors sample, CaptureOptions options);
  ~CapturedStep();
  CapturedStep(CapturedStep&&) noexcept;
  CapturedStep& operator=(CapturedStep&&) noexcept;

  // Throws BudgetError when the budget is infeasible, with the smallest peak that some plan reaches; the
  // plan before, if there was one, stays.
  const PlanResult& plan(const StepPlanOptions& options = {});
  // A plan from elsewhere, for graph(). Throws InputError with all violations if it is not valid.
  void use(const Plan& plan, const StepPlanOptions& options = {});

  // The first tensor that the function returns. Plans for plain training when nothing was planned.
  // After an exception gradients, buffers and random state are as before the step. With
  // CaptureOptions::optimizer parameters may be updated by then: the exception says which (an Error; a
  // BudgetError if that was the reason).
  at::Tensor run(const Tensors& inputs);
  Tensors run_all(const Tensors& inputs);

  const Graph& graph() const;
  Profile profile() const;  // what was measured
  // Throws InputError when nothing was planned yet.
  const PlanResult& planned() const;
  CapturedStepReport last_step() const;

  // As Remat's.
  void log_steps(int64_t steps);
  std::optional<RunLog> run_log() const;

  struct State;

 private:
  std::unique_ptr<State> state_;
};

// Runs the step four times on `sample` at plain training's memory, to see which bytes each operation
// touches and to record it, and walks through it to measure every operation: once with repetitions, and on the CPU
// some more times in order (at least MeasureOptions::min_repeats). Parameters,
// gradients, buffers, random state are left as they were.
// Installs the counting allocator when the inputs are on the CPU.
//
// Throws InputError for what cannot be replayed, naming the operation: sizes or branches that depend on
// data, numbers read out of tensors, parameters that are written, communication, tensors that are not
// strided.
template <class Step>
CapturedStep capture(Step step, Tensors sample, CaptureOptions options = {}) {
  if constexpr (std::is_same_v<std::invoke_result_t<Step&, const Tensors&>, at::Tensor>) {
    auto list = [step = std::move(step)](const Tensors& in) mutable { return Tensors{step(in)}; };
    return CapturedStep(std::move(list), std::move(sample), std::move(options));
  } else {
    return CapturedStep(std::move(step), std::move(sample), std::move(options));
  }
}

}  // namespace reprise::runtime
