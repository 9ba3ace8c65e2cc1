// Optimizers that a captured step can run parameter by parameter, so that each gradient is used up and given
// back as soon as it is complete (CaptureOptions::optimizer).
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

// An optimizer whose step treats each parameter by itself: what it does to one depends on the gradient and
// the state of that one only.
class ParameterOptimizer {
 public:
  virtual ~ParameterOptimizer() = default;

  virtual std::string name() const = 0;  // "SGD"
  // Of all groups, in their order. A parameter's number is its position here.
  virtual std::vector<at::Tensor> parameters() const = 0;
  // The optimizer's own step, as if this parameter were the only one. Its gradient is in .grad.
  virtual void step(size_t parameter) = 0;
  // Whether it keeps state for the parameter by now. The first step makes it.
  virtual bool has_state(size_t parameter) const = 0;
  // What of the options decides about the memory that a step takes; equal texts, equal memory.
  virtual std::string memory_key(size_t parameter) const = 0;
  // Another optimizer of the same kind, with the options that this parameter has, for one stand-in.
  virtual std::unique_ptr<ParameterOptimizer> twin(size_t parameter,
                                                   const at::Tensor& stand_in) const = 0;
};

// SGD, Adam, AdamW, Adagrad, RMSprop of torch::optim with all their options. Options may change between
// steps (a schedule of learning rates), state may be loaded. The optimizer must outlive what is returned.
// Throws InputError for others: L-BFGS looks at all parameters at once, of a class of your own nobody knows.
std::shared_ptr<ParameterOptimizer> per_parameter(torch::optim::Optimizer& optimizer);

}  // namespace reprise::runtime
