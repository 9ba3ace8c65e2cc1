// Which module of the caller's each call of a recording belongs to.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <vector>

#include "runtime/step/recording.h"

namespace reprise::runtime::internal::modules {

// Fills in Call::module with the path of the innermost module that the call is known to belong to, as
// named_modules() spells it; of several modules the position comes first. What nothing is known of stays
// empty. A forward call that reads a parameter or buffer belongs to its owner; a backward call to that of
// the forward call whose values it reads; what runs between two calls, to the innermost module of both.
void find_modules(step::Recording& recording,
                  const std::vector<std::shared_ptr<torch::nn::Module>>& modules);

}  // namespace reprise::runtime::internal::modules
