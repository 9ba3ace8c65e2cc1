// The gradients of a captured step on their way into .grad.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "runtime/graph/replay.h"
#include "runtime/rewrite/alternative.h"
#include "runtime/step/recording.h"

namespace reprise::runtime::internal::graph {

// A Delivery is a gradient on its way to the tensor that it belongs to.
struct Delivery {
  at::Tensor target;
  at::Tensor gradient;  // undefined where the step makes none
  step::Arrival arrival;
  bool replaces = false;  // It is an average, to which the gradient that was there has been added.
};

// Begins a run: drops the gradients that are there and that the step drops, as the step itself
// does. Throws InputError if a gradient is there that the step would read, because the step was
// captured without.
void begin_gradients(const step::Recording& recording, const Tensors& inputs);

// Returns what the step that just ran has for leaf tensors. Gradients that an update uses up are
// not among it.
// `averaged` says whether the run has averaged those that lie in buckets.
std::vector<Delivery> deliveries(const rewrite::RewrittenStep& step, bool averaged,
                                 const Replay& replay, const Tensors& inputs);

// Delivers as autograd does: the first gradient becomes .grad, and later ones are added to it in
// place. An average replaces the bits of the gradient that is there.
void deliver(std::vector<Delivery>& gradients);

// Says of parameters and inputs whether they want a gradient, as the step does.
void set_flags(const step::Recording& recording, const Tensors& inputs);

}  // namespace reprise::runtime::internal::graph
