// These are optimizers that a captured step can run parameter by parameter
// (CaptureOptions::optimizer). Each gradient is used up and freed as soon as it is complete.
//
//   torch::optim::AdamW adamw(model->parameters(), 1e-3);
//   auto step = reprise::runtime::capture(function, {x, y}, {.optimizer = per_parameter(adamw)});
//   step.run({x, y});   // forward, loss, backward and adamw.step(): no gradient is left
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace torch::optim {
class Optimizer;
}

namespace reprise::runtime {

// A ParameterOptimizer is an optimizer whose step treats each parameter by itself. The update of a
// parameter depends only on the gradient and the state of this parameter.
class ParameterOptimizer {
 public:
  virtual ~ParameterOptimizer() = default;

  // Returns the name, "SGD" for example.
  virtual std::string name() const = 0;
  // Returns the parameters of all groups, in their order. The number of a parameter is its position
  // here.
  virtual std::vector<at::Tensor> parameters() const = 0;
  // Does the optimizer's own step as if this parameter were the only one. The gradient is in .grad.
  virtual void step(size_t parameter) = 0;
  // Says whether the optimizer keeps state for the parameter by now. The first step makes the
  // state.
  virtual bool has_state(size_t parameter) const = 0;
  // Returns a text of the options that decide how much memory a step takes. Equal texts mean equal
  // memory.
  virtual std::string memory_key(size_t parameter) const = 0;
  // Returns another optimizer of the same kind for one stand-in, with the options that this
  // parameter has.
  virtual std::unique_ptr<ParameterOptimizer> twin(size_t parameter,
                                                   const at::Tensor& stand_in) const = 0;
  // Returns the tensors of the parameter's state that step() changes in place, such as the moments of
  // Adam. They may lie in another memory between the runs of a captured step
  // (StepPlanOptions::offload_optimizer). An empty list says that the state stays on its device.
  virtual std::vector<at::Tensor> state_of(size_t parameter) const {
    static_cast<void>(parameter);
    return {};
  }
  // Drops the state of all parameters but these, because other processes keep it
  // (CaptureOptions::shard_optimizer). Returns false, and drops nothing, if the optimizer cannot do
  // so; then its state cannot be sharded.
  virtual bool keep_state_of(const std::vector<size_t>& parameters) {
    static_cast<void>(parameters);
    return false;
  }
};

// Adapts SGD, Adam, AdamW, Adagrad and RMSprop of torch::optim, with all their options. Options may
// change between steps, as a schedule of learning rates does, and state may be loaded. The
// optimizer must outlive the adapter. Throws InputError for other classes: L-BFGS looks at all
// parameters at once, and a class of your own may do so.
std::shared_ptr<ParameterOptimizer> per_parameter(torch::optim::Optimizer& optimizer);

// Says whether a captured step that is there keeps only a shard of this optimizer's state in this
// process.
bool is_sharded(const torch::optim::Optimizer& optimizer);

}  // namespace reprise::runtime
