#include "estimates.h"

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <array>
#include <optional>
#include <string>

#include "reprise/model/errors.h"
#include "reprise/runtime/nn/finite_depth.h"
#include "reprise/runtime/nn/group_codec.h"
#include "reprise/runtime/nn/xconv.h"

namespace reprise::python {
namespace {

namespace py = pybind11;
namespace rt = reprise::runtime;
using Pair = std::array<int64_t, 2>;

at::Tensor xconv2d(const at::Tensor& x, const at::Tensor& weight,
                   const std::optional<at::Tensor>& bias, int64_t probes, const Pair& stride,
                   const Pair& padding, const Pair& dilation, int64_t groups,
                   const std::optional<uint64_t>& seed) {
  return rt::nn::xconv2d(x, weight, bias.value_or(at::Tensor()),
                         {.probes = probes,
                          .stride = stride,
                          .padding = padding,
                          .dilation = dilation,
                          .groups = groups,
                          .seed = seed});
}

rt::nn::Encoded encode(const at::Tensor& x, int bits, int64_t group, bool stochastic, uint64_t seed,
                       const std::string& codec) {
  if (codec != "range" && codec != "olive") {
    throw InputError("a codec is \"range\" or \"olive\", not \"" + codec + "\"");
  }
  const auto kind = codec == "olive" ? rt::nn::CodecKind::kOlive : rt::nn::CodecKind::kRange;
  return rt::nn::encode(
      x, {.bits = bits, .group = group, .stochastic = stochastic, .seed = seed, .kind = kind});
}

}  // namespace

void bind_estimates(py::module_& module) {
  using no_gil = py::call_guard<py::gil_scoped_release>;
  py::class_<rt::nn::Encoded>(module, "Encoded")
      .def_property_readonly("bytes", &rt::nn::Encoded::bytes)
      .def("largest_error", &rt::nn::Encoded::largest_error);
  module.def("encode", &encode, py::arg("x"), py::kw_only(), py::arg("bits"), py::arg("group"),
             py::arg("stochastic"), py::arg("seed"), py::arg("codec"), no_gil());
  module.def("decode", &rt::nn::decode, py::arg("encoded"), no_gil());
  module.def("xconv2d", &xconv2d, py::arg("x"), py::arg("weight"), py::arg("bias"), py::kw_only(),
             py::arg("probes"), py::arg("stride"), py::arg("padding"), py::arg("dilation"),
             py::arg("groups"), py::arg("seed"), no_gil());
  module.def("finite_depth", &rt::nn::finite_depth, py::arg("x"), py::arg("weights"),
             py::arg("biases"), py::arg("activation"), no_gil());
}

}  // namespace reprise::python
