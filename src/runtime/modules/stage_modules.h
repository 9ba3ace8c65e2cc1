// Puts the modules of a model's stages under one parent module.
#pragma once

#include <torch/nn/module.h>

#include <vector>

#include "reprise/runtime/stage.h"

namespace reprise::runtime::internal::modules {

// Registers the stages' modules as children of `parent` under the stages' names, in which '.'
// becomes '_'. A module that several stages share is registered once, under the name of the first
// of them.
void register_stages(torch::nn::Module& parent, const std::vector<Stage>& stages);

}  // namespace reprise::runtime::internal::modules
