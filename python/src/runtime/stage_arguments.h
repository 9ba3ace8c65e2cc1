// These are stages as Python gives them.
#pragma once

#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "mirror.h"
#include "reprise/runtime/stage.h"

namespace reprise::python {

// A stage: its name, its function, and the modules whose parameters and buffers it uses.
using StageArgument =
    std::tuple<std::string, std::function<runtime::Tensors(const runtime::Tensors&)>,
               std::vector<py::object>>;

inline std::vector<runtime::Stage> stages_of(const std::vector<StageArgument>& arguments,
                                             Mirrors& mirrors) {
  std::vector<runtime::Stage> stages;
  for (const auto& [name, forward, modules] : arguments) {
    std::shared_ptr<torch::nn::Module> module;
    if (modules.size() == 1) module = mirrors.of(modules[0]);
    if (modules.size() > 1) module = mirrors.of_all(modules);
    stages.push_back({name, std::move(module), forward});
  }
  return stages;
}

}  // namespace reprise::python
