// Runs plain training steps of stages, to compare with.
#pragma once

#include <torch/nn/module.h>

#include <string>
#include <vector>

#include "reprise/runtime/measure.h"
#include "reprise/runtime/stage.h"

namespace reprise::runtime::testing {

// Holds everything that a step changes.
struct StepResult {
  at::Tensor loss;
  std::vector<at::Tensor> gradients;        // of the parameters; undefined where there is none
  std::vector<at::Tensor> input_gradients;  // of the inputs
  std::vector<at::Tensor> buffers;
  at::Tensor random;  // state of the CPU generator
};

// Returns the distinct parameters and buffers of the stages' modules.
std::vector<at::Tensor> parameters_of(const std::vector<Stage>& stages);
std::vector<at::Tensor> buffers_of(const std::vector<Stage>& stages);

// Runs the stages one after the other, as torch::nn::Sequential runs them.
Tensors run_plain(const std::vector<Stage>& stages, Tensors x);

// Copies the present state.
StepResult snapshot(const std::vector<Stage>& stages, const Tensors& inputs,
                    const at::Tensor& loss);

// Names the parts of two results that differ in at least one bit. The text is empty if none does.
std::string difference(const StepResult& a, const StepResult& b);

// Holds the buffers and the random state of now. restore() also drops all gradients.
class StepState {
 public:
  StepState(const std::vector<Stage>& stages, Tensors inputs);
  void restore() const;

 private:
  std::vector<at::Tensor> parameters_, inputs_, buffers_, copies_;
  at::Tensor random_;
};

// Runs one plain step from the present state. Returns the bytes at its peak, all live memory
// included.
StepResult plain_step(const std::vector<Stage>& stages, const Tensors& inputs, const Loss& loss,
                      int64_t* peak = nullptr);

}  // namespace reprise::runtime::testing
