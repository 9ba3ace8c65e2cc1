// Gives Python differentiable singular value decompositions.
#pragma once

#include <pybind11/pybind11.h>

namespace reprise::python {

void bind_decompositions(pybind11::module_& module);

}  // namespace reprise::python
