// Translates the project's exceptions into those of the Python package.
#pragma once

#include <pybind11/pybind11.h>

#include <exception>

#include "reprise/model/errors.h"

namespace reprise::python {

// Sets reprise.errors.<name>(message, ...) as the current Python exception.
template <class... Args>
void set_error(const char* name, Args&&... arguments) {
  const pybind11::object kind = pybind11::module_::import("reprise.errors").attr(name);
  const pybind11::object error = kind(std::forward<Args>(arguments)...);
  PyErr_SetObject(kind.ptr(), error.ptr());
}

// Translates exceptions for pybind11::register_local_exception_translator(), and passes all others
// on to the next translator.
inline void translate_error(std::exception_ptr pointer) {
  try {
    if (pointer) std::rethrow_exception(pointer);
  } catch (const InputError& error) {
    const Location& where = error.where();
    set_error("InputError", error.what(), where.file, where.pointer, where.line);
  } catch (const BudgetError& error) {
    set_error("BudgetError", error.what(), error.budget(), error.live(), error.requested());
  } catch (const InternalError& error) {
    set_error("InternalError", error.what());
  }
}

}  // namespace reprise::python
