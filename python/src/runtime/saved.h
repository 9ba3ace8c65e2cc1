// Gives Python files of tensors, for saved states.
#pragma once

#include <pybind11/pybind11.h>

namespace reprise::python {

void bind_saved(pybind11::module_& module);

}  // namespace reprise::python
