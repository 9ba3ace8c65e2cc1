// Makes the training step of a model of the zoo: forward, loss, backward.
#pragma once

#include "plain_step.h"
#include "reprise/runtime/capture.h"
#include "training/zoo.h"

namespace reprise::runtime::testing {

// The step takes the sample's input and target, and returns the loss. The model must outlive it.
inline StepFunction training_step(const training::Model& model) {
  return [&model](const Tensors& in) {
    const at::Tensor loss = model.loss(run_plain(model.stages, {in[0]}).at(0), in[1]);
    loss.backward();
    return Tensors{loss};
  };
}

}  // namespace reprise::runtime::testing
