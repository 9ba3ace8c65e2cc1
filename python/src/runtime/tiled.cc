#include "tiled.h"

#include <torch/csrc/autograd/python_variable.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "reprise/model/errors.h"
#include "reprise/runtime/nn/forward_ad.h"

namespace reprise::python {
namespace {

namespace py = pybind11;
namespace rt = reprise::runtime;
using rt::Tensors;

rt::nn::DerivativeStorage storage_of(const std::optional<at::ScalarType>& type) {
  if (!type) return rt::nn::DerivativeStorage::kFull;
  switch (*type) {
    case at::kHalf:
      return rt::nn::DerivativeStorage::kFloat16;
    case at::kBFloat16:
      return rt::nn::DerivativeStorage::kBFloat16;
    case at::kChar:
      return rt::nn::DerivativeStorage::kScaled8;
    default:
      throw InputError(
          std::string("storage is torch.float16, torch.bfloat16, torch.int8 or None, not ") +
          c10::toString(*type));
  }
}

// Threads of a parallel loop call the function, and so do threads that have no state of Python yet.
rt::nn::Elementwise calls(py::function function) {
  auto held = std::shared_ptr<py::function>(new py::function(std::move(function)),
                                            [](py::function* dropped) {
                                              const py::gil_scoped_acquire gil;
                                              delete dropped;
                                            });
  return [held = std::move(held)](const Tensors& operands) {
    const py::gil_scoped_acquire gil;
    py::tuple arguments(operands.size());
    for (size_t i = 0; i < operands.size(); ++i) arguments[i] = py::cast(operands[i]);
    const py::object result = (*held)(*arguments);
    if (!THPVariable_Check(result.ptr())) {
      throw InputError("the element-wise function returned " +
                       std::string(py::str(py::type::of(result).attr("__name__"))) +
                       " and no tensor");
    }
    return result.cast<at::Tensor>();
  };
}

rt::nn::TiledFunction make(rt::nn::Elementwise function, bool keep_operands,
                           const std::optional<at::ScalarType>& storage, int64_t tile) {
  const rt::nn::DerivativeStorage stored = storage_of(storage);
  if (keep_operands) return rt::nn::in_tile(std::move(function), {.tile = tile});
  return rt::nn::forward_ad(std::move(function), {.storage = stored, .tile = tile});
}

std::vector<std::tuple<std::string, std::string, size_t>> list_activations() {
  std::vector<std::tuple<std::string, std::string, size_t>> rows;
  for (const rt::nn::Activation& one : rt::nn::activations()) {
    rows.emplace_back(one.name, one.formula, one.operands);
  }
  return rows;
}

}  // namespace

void bind_tiled_functions(py::module_& module) {
  using Type = std::optional<at::ScalarType>;
  py::class_<rt::nn::TiledFunction>(module, "TiledFunction")
      .def(py::init(
               [](py::function function, bool keep_operands, const Type& storage, int64_t tile) {
                 return make(calls(std::move(function)), keep_operands, storage, tile);
               }),
           py::arg("function"), py::kw_only(), py::arg("keep_operands"), py::arg("storage"),
           py::arg("tile"))
      .def_static(
          "activation",
          [](const std::string& name, bool keep_operands, const Type& storage) {
            return make(rt::nn::activation(name), keep_operands, storage, 0);
          },
          py::arg("name"), py::kw_only(), py::arg("keep_operands"), py::arg("storage"))
      .def(
          "run",
          [](const rt::nn::TiledFunction& self, const Tensors& operands) {
            const py::gil_scoped_release no_gil;
            return self(operands);
          },
          py::arg("operands"));
  module.def("activations", &list_activations);
}

}  // namespace reprise::python
