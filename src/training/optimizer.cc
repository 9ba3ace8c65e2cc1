#include "training/optimizer.h"

#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

namespace reprise::training {

using runtime::Tensors;
using runtime::internal::state::Parked;

namespace {

// Returns the tensors of the state. Adds Adam's step counts to `steps` unless that is null.
Tensors state_tensors(torch::optim::Optimizer& optimizer, const Tensors& parameters,
                      std::vector<int64_t>* steps) {
  Tensors all;
  for (const at::Tensor& parameter : parameters) {
    const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
    if (found == optimizer.state().end()) continue;
    if (auto* sgd = dynamic_cast<torch::optim::SGDParamState*>(found->second.get())) {
      all.push_back(sgd->momentum_buffer());
    } else if (auto* adam = dynamic_cast<torch::optim::AdamParamState*>(found->second.get())) {
      all.insert(all.end(), {adam->exp_avg(), adam->exp_avg_sq()});
      if (steps != nullptr) steps->push_back(adam->step());
    }
  }
  return all;
}

}  // namespace

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const TrainOptions& options,
                                                        const Tensors& parameters) {
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  const bool sgd = options.optimizer == OptimizerKind::kSgd;
  const bool momentum = sgd && options.momentum > 0;
  const double usual = !sgd ? 0.001 : momentum ? 0.02 : 0.05;
  const double rate = options.learning_rate > 0 ? options.learning_rate : usual;
  if (sgd) {
    optimizer = std::make_unique<torch::optim::SGD>(
        parameters, torch::optim::SGDOptions(rate).momentum(options.momentum));
  } else {
    optimizer = std::make_unique<torch::optim::Adam>(parameters, torch::optim::AdamOptions(rate));
  }
  for (const at::Tensor& parameter : parameters) {
    void* key = parameter.unsafeGetTensorImpl();
    if (momentum) {
      auto state = std::make_unique<torch::optim::SGDParamState>();
      state->momentum_buffer(at::zeros_like(parameter));
      optimizer->state()[key] = std::move(state);
    } else if (sgd) {
      continue;
    } else {
      auto state = std::make_unique<torch::optim::AdamParamState>();
      state->step(0);
      state->exp_avg(at::zeros_like(parameter));
      state->exp_avg_sq(at::zeros_like(parameter));
      optimizer->state()[key] = std::move(state);
    }
  }
  return optimizer;
}

OptimizerState state_of(torch::optim::Optimizer& optimizer, const Tensors& parameters) {
  OptimizerState state;
  state.tensors = Parked(state_tensors(optimizer, parameters, &state.steps));
  return state;
}

void put_back(torch::optim::Optimizer& optimizer, const Tensors& parameters,
              const OptimizerState& state) {
  put_back(state_tensors(optimizer, parameters, nullptr), state.tensors);
  auto step = state.steps.begin();
  for (const at::Tensor& parameter : parameters) {
    const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
    if (found == optimizer.state().end()) continue;
    auto* adam = dynamic_cast<torch::optim::AdamParamState*>(found->second.get());
    if (adam != nullptr) adam->step(*step++);
  }
}

void set_learning_rate(torch::optim::Optimizer& optimizer, double rate) {
  for (torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    group.options().set_lr(rate);
  }
}

}  // namespace reprise::training
