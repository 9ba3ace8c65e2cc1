// Gives Python InPlace-ABN.
#pragma once

#include <pybind11/pybind11.h>

namespace reprise::python {

void bind_in_place_abn(pybind11::module_& module);

}  // namespace reprise::python
