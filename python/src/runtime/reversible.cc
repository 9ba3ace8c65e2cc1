#include "reversible.h"

#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <utility>
#include <vector>

#include "reprise/runtime/nn/reversible.h"
#include "stage_arguments.h"

namespace reprise::python {
namespace {

namespace rt = reprise::runtime;
using rt::nn::StreamNumbers;

// Two branches are a block.
class Reversible {
 public:
  Reversible(const std::vector<StageArgument>& branches, bool fixed, int fraction_bits) {
    std::vector<rt::Stage> stages = stages_of(branches, mirrors_);
    std::vector<rt::nn::ReversibleBlock> blocks;
    for (size_t i = 0; i + 1 < stages.size(); i += 2) {
      blocks.push_back({std::move(stages[i]), std::move(stages[i + 1])});
    }
    const rt::nn::ReversibleOptions options{
        .streams = fixed ? StreamNumbers::kFixedPoint : StreamNumbers::kFloatingPoint,
        .fraction_bits = fraction_bits};
    network_ = std::make_shared<rt::nn::ReversibleSequence>(std::move(blocks), options);
  }
  std::pair<at::Tensor, at::Tensor> run(const at::Tensor& x1, const at::Tensor& x2, bool reverse) {
    const py::gil_scoped_release no_gil;
    network_->set_reverse(reverse);
    return network_->forward(x1, x2);
  }
  bool refresh() { return mirrors_.refresh(); }

 private:
  Mirrors mirrors_;
  std::shared_ptr<rt::nn::ReversibleSequence> network_;
};

}  // namespace

void bind_reversible(py::module_& module) {
  py::class_<Reversible>(module, "Reversible")
      .def(py::init<const std::vector<StageArgument>&, bool, int>(), py::arg("branches"),
           py::kw_only(), py::arg("fixed"), py::arg("fraction_bits"))
      .def("run", &Reversible::run, py::arg("x1"), py::arg("x2"), py::kw_only(), py::arg("reverse"))
      .def("refresh", &Reversible::refresh);
}

}  // namespace reprise::python
