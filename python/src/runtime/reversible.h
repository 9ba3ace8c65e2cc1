// Gives Python reversible networks.
#pragma once

#include <pybind11/pybind11.h>

namespace reprise::python {

void bind_reversible(pybind11::module_& module);

}  // namespace reprise::python
