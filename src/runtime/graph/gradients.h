// Brings the gradients of a captured step into .grad.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
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
  int32_t value = -1;     // the step value that the gradient is; -1 if it is none
};

// Begins a run. If gradients are there already, drops those that the step itself would drop. Throws
// InputError if the step would read a gradient that is there already, because it was captured
// without.
void begin_gradients(const step::Recording& recording, const Tensors& inputs);

// Returns the gradients that the step that just ran has for leaf tensors, without those that an
// update uses up. `averaged` says whether the run has averaged the gradients in buckets.
std::vector<Delivery> deliveries(const rewrite::RewrittenStep& step, bool averaged,
                                 const Replay& replay, const Tensors& inputs);

// Delivers as autograd does: the first gradient becomes .grad, and later ones are added to it in
// place. An average replaces the bits of the gradient that is there.
void deliver(std::vector<Delivery>& gradients);

// Says of parameters and inputs whether they want a gradient, as the step does.
void set_flags(const step::Recording& recording, const Tensors& inputs);

}  // namespace reprise::runtime::internal::graph
