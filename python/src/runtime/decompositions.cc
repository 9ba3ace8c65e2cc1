#include "decompositions.h"

#include <torch/csrc/utils/pybind.h>

#include <tuple>

#include "reprise/runtime/nn/svd.h"

namespace reprise::python {

namespace py = pybind11;
namespace rt = reprise::runtime;

void bind_decompositions(py::module_& module) {
  using NoGil = py::call_guard<py::gil_scoped_release>;
  using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
  module.def(
      "svd_halves",
      [](const at::Tensor& a, int64_t keep) {
        const auto [left, right] = rt::nn::svd_halves(a, keep);
        return std::pair(left, right);
      },
      py::arg("a"), py::arg("keep"), NoGil());
  module.def(
      "safe_svd",
      [](const at::Tensor& a) {
        const auto [u, s, v] = rt::nn::safe_svd(a);
        return Three(u, s, v);
      },
      py::arg("a"), NoGil());
  module.def(
      "svd_tangent",
      [](const Three& of, const at::Tensor& da, int64_t keep) {
        const auto [u, s, v] =
            rt::nn::svd_tangent({std::get<0>(of), std::get<1>(of), std::get<2>(of)}, da, keep);
        return Three(u, s, v);
      },
      py::arg("of"), py::arg("da"), py::arg("keep"), NoGil());
}

}  // namespace reprise::python
