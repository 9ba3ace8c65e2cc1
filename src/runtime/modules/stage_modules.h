// The modules of a model's stages under one roof.
#pragma once

#include <torch/nn/module.h>

#include <vector>

#include "reprise/runtime/stage.h"

namespace reprise::runtime::internal::modules {

// Registers the stages' modules as children of `parent` under the stages' names ('.' becomes '_'), a
// module of several stages once, under the first.
void register_stages(torch::nn::Module& parent, const std::vector<Stage>& stages);

}  // namespace reprise::runtime::internal::modules
