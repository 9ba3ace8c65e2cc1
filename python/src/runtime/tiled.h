// Runs element-wise functions of Python tile by tile.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace reprise::python {

// Adds the class TiledFunction and the table of activations to the module.
void bind_tiled_functions(pybind11::module_& module);

}  // namespace reprise::python
