// This part of the extension is for parts of pipelines.
#pragma once

#include <pybind11/pybind11.h>

namespace reprise::python {

void bind_pipeline(pybind11::module_& m);

}  // namespace reprise::python
