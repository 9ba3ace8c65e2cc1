// This file has the state of an optimizer in a saved state.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "runtime/saved/state_text.h"
#include "runtime/saved/tensor_files.h"

namespace reprise::runtime::internal::saved {

// The names of parameters, by their tensors.
using ParameterNames = std::map<const void*, std::string>;
// The writes that are still to be done once everything has been compared.
using Assignments = std::vector<std::function<void()>>;

// Writes the class, the groups with their options, and the state; adds the tensors to `tensors`.
void write_optimizer(io::Writer& writer, torch::optim::Optimizer& optimizer,
                     const ParameterNames& names, NamedTensors& tensors);

// Compares the optimizer with a saved one, and adds to `todo` what loads it. Throws InputError if
// the class, the groups, their parameters or the shape of a tensor differ, or if an option is on
// that LibTorch's class does not have. `file` must outlive `todo`.
void plan_optimizer(const StateFile& file, const io::Element& saved,
                    torch::optim::Optimizer& optimizer, const ParameterNames& names,
                    Assignments& todo);

}  // namespace reprise::runtime::internal::saved
