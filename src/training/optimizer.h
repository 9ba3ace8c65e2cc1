// These are optimizers of the training loop, with state that can be stored and put back.
#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <vector>

#include "training/outcome.h"
#include "training/train.h"

namespace reprise::training {

// Makes an optimizer together with its state, so that no step takes more memory than the first. The
// state has the values that the first step would start from.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(const TrainOptions& options,
                                                        const runtime::Tensors& parameters);

// Copies the optimizer's state for these parameters into memory that is not counted.
OptimizerState state_of(torch::optim::Optimizer& optimizer, const runtime::Tensors& parameters);

// Writes a stored state back into the tensors of the optimizer.
void put_back(torch::optim::Optimizer& optimizer, const runtime::Tensors& parameters,
              const OptimizerState& state);

void set_learning_rate(torch::optim::Optimizer& optimizer, double rate);

}  // namespace reprise::training
