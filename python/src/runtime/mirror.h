// Mirrors are modules of Python (torch.nn.Module) as the C++ runtime sees them.
#pragma once

#include <torch/csrc/utils/pybind.h>
#include <torch/nn/module.h>

#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace reprise::python {

namespace py = pybind11;

// A Mirror is a C++ module with the children, parameters and buffers of a module of Python. The
// tensors are the same tensors, not copies. The train flag is that of the last refresh(). Members
// may be called without the GIL.
class Mirror final : public torch::nn::Module {
 public:
  bool is_training() const noexcept override { return training_; }

 private:
  friend class Mirrors;

  // The tensors that the module had when the mirror was made: parameters, then buffers.
  std::vector<const void*> tensors_;
  bool training_ = true;
};

// Mirrors has the mirrors of several modules. A module that is met twice has one mirror. The caller
// holds the GIL for every member, the destructor included.
class Mirrors {
 public:
  std::shared_ptr<Mirror> of(const py::handle& module);
  // Mirrors that are made from now on have none of these parameters.
  void leave_out(const std::vector<at::Tensor>& parameters);
  // Returns one mirror whose children are the mirrors of all these modules.
  std::shared_ptr<Mirror> of_all(const std::vector<py::object>& modules);

  // Takes over the train flags. Returns false if a module now has other children, parameters or buffers:
  // the mirrors are then outdated.
  bool refresh();

 private:
  struct Seen {
    py::object module;  // held, so that no other module gets its address
    std::shared_ptr<Mirror> mirror;
    std::vector<PyObject*> children;
  };
  std::unordered_map<PyObject*, size_t> positions_;
  std::unordered_set<const void*> left_out_;
  std::vector<Seen> seen_;
};

}  // namespace reprise::python
