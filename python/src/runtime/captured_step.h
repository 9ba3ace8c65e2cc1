// This part of the extension is for captured steps.
#pragma once

#include <pybind11/pybind11.h>

namespace reprise::python {

void bind_captured_step(pybind11::module_& m);

}  // namespace reprise::python
