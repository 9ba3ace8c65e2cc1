// Gives Python few-bit activations.
#pragma once

#include <pybind11/pybind11.h>

namespace reprise::python {

void bind_few_bit(pybind11::module_& module);

}  // namespace reprise::python
