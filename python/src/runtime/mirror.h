// A torch.nn.Module of Python as the C++ runtime sees it.
#pragma once

#include <torch/csrc/utils/pybind.h>
#include <torch/nn/module.h>

#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

namespace reprise::python {

namespace py = pybind11;

// The same children, parameters and buffers: not copies, the same tensors. The training flag is that of
// the last refresh(). Members may be called without the GIL unless they say otherwise.
class Mirror final : public torch::nn::Module {
 public:
  bool is_training() const noexcept override { return training_; }

 private:
  friend class Mirrors;

  // Parameters, then buffers, as they were when the mirror was made.
  std::vector<const void*> tensors_;
  bool training_ = true;
};

// Mirrors of several modules; a module that is met twice has one mirror. Has the GIL wherever it is used, its
// destruction included.
class Mirrors {
 public:
  std::shared_ptr<Mirror> of(const py::handle& module);
  // One mirror that has the mirrors of all of them as children.
  std::shared_ptr<Mirror> of_all(const std::vector<py::object>& modules);

  // Takes over the training flags. False when a module has got other children, parameters or buffers:
  // then the mirrors are of the past.
  bool refresh();

 private:
  struct Seen {
    py::object module;  // keeps the address unique
    std::shared_ptr<Mirror> mirror;
    std::vector<PyObject*> children;
  };
  std::unordered_map<PyObject*, size_t> positions_;
  std::vector<Seen> seen_;
};

}  // namespace reprise::python
