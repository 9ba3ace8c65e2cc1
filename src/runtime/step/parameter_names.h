// These are the names of parameters in messages and in the ids of operations.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "reprise/runtime/capture.h"

namespace reprise::runtime::internal::step {

// Returns a name for each parameter: its path in the modules of the options where they have it, and
// "parameter3" where they do not. No name is there twice.
std::vector<std::string> parameter_names(const std::vector<at::Tensor>& parameters,
                                         const CaptureOptions& options);

}  // namespace reprise::runtime::internal::step
