// Finds the module of the caller that each call of a recording belongs to.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <vector>

#include "runtime/step/recording.h"

namespace reprise::runtime::internal::modules {

// Returns the recording with Call::module filled in. It is the path of the innermost module that
// the call is known to belong to, as named_modules() spells it. Where there are several modules,
// the path begins with the position of one of them. The path stays empty where nothing is known.
//
// - A forward call that reads a parameter or a buffer belongs to the module that owns it.
// - A backward call belongs to the module of the forward call whose values it reads.
// - A call between two others belongs to the innermost module that both of them lie in.
step::Recording with_modules(step::Recording recording,
                             const std::vector<std::shared_ptr<torch::nn::Module>>& modules);

}  // namespace reprise::runtime::internal::modules
