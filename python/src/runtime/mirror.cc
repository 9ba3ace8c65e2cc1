#include "mirror.h"

#include <string>

namespace reprise::python {
namespace {

// Returns a module's dictionary of parameters, buffers or children, without the entries that are None.
std::vector<std::pair<std::string, py::object>> entries(const py::handle& module,
                                                        const char* attribute) {
  std::vector<std::pair<std::string, py::object>> result;
  for (const auto& [name, value] : py::dict(module.attr(attribute))) {
    if (value.is_none()) continue;
    result.emplace_back(py::cast<std::string>(name), py::reinterpret_borrow<py::object>(value));
  }
  return result;
}

std::vector<PyObject*> children_of(const py::handle& module) {
  std::vector<PyObject*> result;
  for (const auto& entry : entries(module, "_modules")) result.push_back(entry.second.ptr());
  return result;
}

std::vector<const void*> tensors_of(const py::handle& module) {
  std::vector<const void*> result;
  for (const char* attribute : {"_parameters", "_buffers"}) {
    for (const auto& entry : entries(module, attribute)) {
      result.push_back(py::cast<at::Tensor>(entry.second).unsafeGetTensorImpl());
    }
  }
  return result;
}

}  // namespace

std::shared_ptr<Mirror> Mirrors::of(const py::handle& module) {
  const auto known = positions_.find(module.ptr());
  if (known != positions_.end()) return seen_[known->second].mirror;
  auto mirror = std::make_shared<Mirror>();
  positions_.emplace(module.ptr(), seen_.size());
  seen_.push_back({py::reinterpret_borrow<py::object>(module), mirror, children_of(module)});
  for (const auto& [name, value] : entries(module, "_parameters")) {
    const auto tensor = py::cast<at::Tensor>(value);
    mirror->register_parameter(name, tensor, tensor.requires_grad());
  }
  for (const auto& [name, value] : entries(module, "_buffers")) {
    mirror->register_buffer(name, py::cast<at::Tensor>(value));
  }
  for (const auto& [name, child] : entries(module, "_modules")) {
    mirror->register_module(name, of(child));
  }
  mirror->tensors_ = tensors_of(module);
  mirror->training_ = py::cast<bool>(module.attr("training"));
  return mirror;
}

std::shared_ptr<Mirror> Mirrors::of_all(const std::vector<py::object>& modules) {
  auto root = std::make_shared<Mirror>();
  for (size_t i = 0; i < modules.size(); ++i) {
    root->register_module(std::to_string(i), of(modules[i]));
  }
  return root;
}

bool Mirrors::refresh() {
  for (Seen& seen : seen_) {
    if (children_of(seen.module) != seen.children) return false;
    if (tensors_of(seen.module) != seen.mirror->tensors_) return false;
    seen.mirror->training_ = py::cast<bool>(seen.module.attr("training"));
  }
  return true;
}

}  // namespace reprise::python
