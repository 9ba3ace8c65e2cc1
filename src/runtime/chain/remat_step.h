// Runs a step of a planned model as a node of autograd.
#pragma once

#include <memory>
#include <vector>

#include "reprise/runtime/remat.h"
#include "reprise/runtime/stage.h"

namespace reprise::runtime::internal::chain {

// Runs the forward half of a step, or the plain stages where no plan is wanted. `inputs` are those of
// each branch. The node runs the backward half.
Tensors run_step(const std::shared_ptr<Remat::State>& state, const std::vector<Tensors>& inputs);

}  // namespace reprise::runtime::internal::chain
