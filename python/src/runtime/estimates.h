// Gives Python layers with approximate gradients: the codec of saved tensors, XConv; and machines
// of finite depth.
#pragma once

#include <pybind11/pybind11.h>

namespace reprise::python {

void bind_estimates(pybind11::module_& module);

}  // namespace reprise::python
