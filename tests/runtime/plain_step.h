// Plain training steps of stages, to compare with.
#pragma once

#include <torch/nn/module.h>

#include <string>
#include <vector>

#include "reprise/runtime/measure.h"
#include "reprise/runtime/stage.h"

namespace reprise::runtime::testing {

// Everything that a step changes.
struct StepResult {
  at::Tensor loss;
  std::vector<at::Tensor> gradients;        // of the parameters; undefined where there is none
  std::vector<at::Tensor> input_gradients;  // of the inputs
  std::vector<at::Tensor> buffers;
  at::Tensor random;  // state of the CPU generator
};

// Distinct parameters and buffers of the stages' modules.
std::vector<at::Tensor> parameters_of(const std::vector<Stage>& stages);
std::vector<at::Tensor> buffers_of(const std::vector<Stage>& stages);

// The stages one after the other, as torch::nn::Sequential runs them.
Tensors run_plain(const std::vector<Stage>& stages, Tensors x);

// Copies of what there is now.
StepResult snapshot(const std::vector<Stage>& stages, const Tensors& inputs,
                    const at::Tensor& loss);

// Which parts of two results differ in at least one bit, in words; empty when none does.
std::string difference(const StepResult& a, const StepResult& b);

// Buffers and random state as they are now; restore() also drops all gradients.
class StepState {
 public:
  StepState(const std::vector<Stage>& stages, Tensors inputs);
  void restore() const;

 private:
  std::vector<at::Tensor> parameters_, inputs_, buffers_, copies_;
  at::Tensor random_;
};

// One plain step from the state as it is; bytes at its peak, all live memory included.
StepResult plain_step(const std::vector<Stage>& stages, const Tensors& inputs, const Loss& loss,
                      int64_t* peak = nullptr);

}  // namespace reprise::runtime::testing
