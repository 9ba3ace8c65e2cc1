#include "few_bit.h"

#include <torch/csrc/utils/pybind.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "reprise/runtime/nn/few_bit.h"

namespace reprise::python {

namespace py = pybind11;
namespace rt = reprise::runtime;

void bind_few_bit(py::module_& module) {
  module.def("few_bit", &rt::nn::few_bit, py::arg("name"), py::arg("x"), py::arg("bits"),
             py::call_guard<py::gil_scoped_release>());
  module.def(
      "few_bit_table",
      [](const std::string& name, int bits) {
        const rt::nn::StepTable& table = rt::nn::few_bit_table(name, bits);
        return std::pair(table.boundaries, table.levels);
      },
      py::arg("name"), py::arg("bits"));
  module.def("few_bit_activations", [] {
    std::vector<std::tuple<std::string, std::string, int>> rows;
    for (const rt::nn::FewBitActivation& one : rt::nn::few_bit_activations()) {
      rows.emplace_back(one.name, one.formula, one.bits);
    }
    return rows;
  });
}

}  // namespace reprise::python
