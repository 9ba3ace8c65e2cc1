#include "in_place_abn.h"

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <optional>
#include <string>

#include "reprise/model/errors.h"
#include "reprise/runtime/nn/in_place_abn.h"

namespace reprise::python {
namespace {

namespace py = pybind11;
namespace rt = reprise::runtime;
using MaybeTensor = std::optional<at::Tensor>;

rt::nn::AbnActivation activation_of(const std::string& name) {
  if (name == "leaky_relu") return rt::nn::AbnActivation::kLeakyRelu;
  if (name == "elu") return rt::nn::AbnActivation::kElu;
  if (name == "identity") return rt::nn::AbnActivation::kIdentity;
  throw InputError("activation is leaky_relu, elu or identity, not " + name);
}

at::Tensor run(const at::Tensor& x, const MaybeTensor& weight, const MaybeTensor& bias,
               const MaybeTensor& running_mean, const MaybeTensor& running_var, bool training,
               const std::string& activation, double parameter, double eps, double momentum,
               double guard) {
  const auto or_none = [](const MaybeTensor& tensor) { return tensor.value_or(at::Tensor()); };
  return rt::nn::in_place_abn(x, or_none(weight), or_none(bias), or_none(running_mean),
                              or_none(running_var), training,
                              {.activation = activation_of(activation),
                               .parameter = parameter,
                               .eps = eps,
                               .momentum = momentum,
                               .guard = guard});
}

}  // namespace

void bind_in_place_abn(py::module_& module) {
  module.def("in_place_abn", &run, py::arg("x"), py::arg("weight"), py::arg("bias"),
             py::arg("running_mean"), py::arg("running_var"), py::arg("training"), py::kw_only(),
             py::arg("activation"), py::arg("parameter"), py::arg("eps"), py::arg("momentum"),
             py::arg("guard"), py::call_guard<py::gil_scoped_release>());
}

}  // namespace reprise::python
