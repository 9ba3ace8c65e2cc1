// This is the extension reprise._runtime, for captured steps and planned chains of stages. It is
// built for one version of PyTorch, and Python compares versions before it loads the extension
// (_torch.py). The runtime works without the GIL. The functions that pybind11 makes of Python
// functions take the GIL themselves.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "arguments.h"
#include "captured_step.h"
#include "decompositions.h"
#include "estimates.h"
#include "few_bit.h"
#include "in_place_abn.h"
#include "online.h"
#include "pipeline.h"
#include "refused.h"
#include "remat.h"
#include "reprise/runtime/allocator.h"
#include "reprise/runtime/capture.h"
#include "reprise/runtime/process_group.h"
#include "reprise/runtime/region_compiler.h"
#include "reprise/runtime/shared_peak.h"
#include "reversible.h"
#include "saved.h"
#include "tiled.h"
#include "watched.h"

namespace reprise::python {
namespace {

namespace rt = reprise::runtime;
using Text = std::string;

// Returns "file:line" of the innermost frame that is neither PyTorch's nor Reprise's own. `inside` are
// the folders of these packages. The caller holds the GIL.
Text innermost_line(const std::vector<Text>& inside) {
  py::object frame =
      py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(PyEval_GetFrame()));
  while (frame && !frame.is_none()) {
    const Text file = py::str(frame.attr("f_code").attr("co_filename"));
    const bool ours = std::any_of(inside.begin(), inside.end(),
                                  [&](const Text& folder) { return file.starts_with(folder); });
    if (!ours) {
      const Text line = py::str(frame.attr("f_lineno"));
      return file.substr(file.find_last_of('/') + 1) + ":" + line;
    }
    frame = frame.attr("f_back");
  }
  return {};
}

// Does so from a step, which runs without the GIL. Frames are looked at by Python, which obeys signals
// there. An interrupt is left to the code that runs next, because it is no defect of the step.
Text place_in_python(const std::vector<Text>& inside) {
  const py::gil_scoped_acquire gil;
  try {
    return innermost_line(inside);
  } catch (const py::error_already_set& error) {
    if (!error.matches(PyExc_KeyboardInterrupt)) throw;
    PyErr_SetInterrupt();
    return {};
  }
}

// Ctrl-C ends the wait for another rank.
void obey_signals() {
  const py::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

// The function returns a tuple for each description: library, symbol, scratch and refusal.
void compile_regions_with(const py::function& function) {
  using Compiled = std::tuple<Text, Text, std::vector<int64_t>, Text>;
  rt::compile_regions_with([function](const std::vector<Text>& descriptions) {
    const py::gil_scoped_acquire gil;
    std::vector<rt::CompiledRegion> all;
    for (auto& [library, symbol, scratch, refusal] :
         function(descriptions).cast<std::vector<Compiled>>()) {
      all.push_back({library, symbol, scratch, refusal});
    }
    return all;
  });
}

void name_places(const std::vector<Text>& inside) {
  rt::find_sources_with([inside] { return place_in_python(inside); });
}

}  // namespace

PYBIND11_MODULE(_runtime, m) {
  bind_refusals(m);
  rt::look_while_waiting(&obey_signals);
  m.def("tell_failure", &rt::tell_failure, py::arg("group"), py::arg("reason"),
        py::call_guard<py::gil_scoped_release>());
  m.def("install_cpu_allocator", &rt::install_cpu_allocator);
  m.def(
      "live_bytes",
      [](const std::string& device) { return rt::memory_count(c10::Device(device)).live; },
      py::arg("device") = "cpu");
  m.def(
      "peak_bytes",
      [](const std::string& device) { return rt::memory_count(c10::Device(device)).peak; },
      py::arg("device") = "cpu");
  m.def(
      "reset_peak", [](const std::string& device) { rt::reset_peak(c10::Device(device)); },
      py::arg("device") = "cpu");
  m.def("no_bytes", &rt::no_bytes_text);
  m.def(
      "beyond_first_batch",
      [](int64_t first, int64_t inputs) {
        return rt::beyond_first_batch({.peak = Bytes(0), .inputs = Bytes(first)}, Bytes(inputs));
      },
      py::arg("first"), py::arg("inputs"));
  m.def("name_places", &name_places, py::arg("inside"));
  m.def("compile_regions_with", &compile_regions_with, py::arg("function"));
  py::class_<Watched>(m, "Watched")
      .def(py::init<>())
      .def("add", &Watched::add, py::arg("dicts"), py::arg("objects"), py::arg("tensors"))
      .def("changed", &Watched::changed)
      .def("renew", &Watched::renew, py::arg("number"));
  m.def("alternatives", &list_alternatives);
  bind_captured_step(m);
  bind_remat(m);
  bind_pipeline(m);
  bind_online(m);
  bind_tiled_functions(m);
  bind_few_bit(m);
  bind_decompositions(m);
  bind_saved(m);
  bind_reversible(m);
  bind_in_place_abn(m);
  bind_estimates(m);
}

}  // namespace reprise::python
