// These are errors of C++ as exceptions of Python, and refused requests for memory.
#pragma once

#include <pybind11/pybind11.h>

namespace reprise::python {

// Translates the errors of the runtime, and lets the allocator refuse requests beyond a budget with a
// reprise.BudgetError.
void bind_refusals(pybind11::module_& m);

}  // namespace reprise::python
