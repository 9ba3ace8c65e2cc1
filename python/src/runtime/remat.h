// This part of the extension is for chain mode: stages one after the other, and branches that meet.
#pragma once

#include <pybind11/pybind11.h>

namespace reprise::python {

void bind_remat(pybind11::module_& m);

}  // namespace reprise::python
