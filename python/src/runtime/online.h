// This part of the extension is for online mode.
#pragma once

#include <pybind11/pybind11.h>

namespace reprise::python {

void bind_online(pybind11::module_& m);

}  // namespace reprise::python
