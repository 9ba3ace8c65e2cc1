// Watched: dicts, types and tensors of Python whose changes are noticed in nanoseconds each.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <cstddef>
#include <vector>

namespace reprise::python {

namespace py = pybind11;

// Notices changes by identity: another object under a key counts as a change even if it is equal to the
// one before. The caller compares what is reported, and renews it if it holds. The caller holds the GIL
// for every member, the destructor included.
class Watched {
 public:
  // Watches the items of these dicts, the classes of these objects, and the `requires_grad` and the hooks
  // of these tensors. They get the next number, which is returned. All of them stay alive.
  size_t add(const std::vector<py::dict>& dicts, const std::vector<py::object>& objects,
             const std::vector<py::object>& tensors);
  // Returns the numbers of those in which something has changed.
  std::vector<size_t> changed() const;
  // Takes the state as it is now for the one that holds.
  void renew(size_t number);

 private:
  struct Dict {
    py::dict dict;
    std::vector<py::object> keys, values;
  };
  struct Object {
    py::object object;
    PyTypeObject* type;
  };
  struct Tensor {
    py::object tensor;
    bool requires_grad;
    std::vector<py::object> hooks;
  };
  struct Group {
    std::vector<Dict> dicts;
    std::vector<Object> objects;
    std::vector<Tensor> tensors;
  };
  static bool holds(const Group& group);
  static bool holds(const Tensor& tensor);

  std::vector<Group> groups_;
};

}  // namespace reprise::python
