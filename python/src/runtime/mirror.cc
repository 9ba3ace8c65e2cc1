#include "mirror.h"

#include <torch/csrc/autograd/python_variable.h>

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

// Names has the names of the dictionaries of a module. They live as long as the process.
struct Names {
  PyObject* modules = PyUnicode_InternFromString("_modules");
  PyObject* parameters = PyUnicode_InternFromString("_parameters");
  PyObject* buffers = PyUnicode_InternFromString("_buffers");
  PyObject* training = PyUnicode_InternFromString("training");
};

const Names& names() {
  static const Names all;
  return all;
}

py::object attribute(const py::handle& module, PyObject* name) {
  PyObject* found = PyObject_GetAttr(module.ptr(), name);
  if (found == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(found);
}

// Says whether the entries of a dictionary that are not None are the expected ones, from `next` on, which
// it advances. This runs before every step, so nothing is copied.
template <class Expected, class Identity>
bool continues(const py::handle& module, PyObject* name, const std::vector<Expected>& expected,
               size_t& next, Identity identity) {
  const py::dict entries(attribute(module, name));  // copied only where it is none
  PyObject *key = nullptr, *value = nullptr;
  for (Py_ssize_t at = 0; PyDict_Next(entries.ptr(), &at, &key, &value);) {
    if (value == Py_None) continue;
    if (next == expected.size() || identity(value) != expected[next]) return false;
    ++next;
  }
  return true;
}

bool has_children(const py::handle& module, const std::vector<PyObject*>& children) {
  size_t next = 0;
  const auto itself = [](PyObject* child) { return child; };
  return continues(module, names().modules, children, next, itself) && next == children.size();
}

bool has_tensors(const py::handle& module, const std::vector<const void*>& tensors) {
  size_t next = 0;
  const auto memory = [](PyObject* value) -> const void* {
    return THPVariable_Check(value) ? THPVariable_Unpack(value).unsafeGetTensorImpl() : nullptr;
  };
  return continues(module, names().parameters, tensors, next, memory) &&
         continues(module, names().buffers, tensors, next, memory) && next == tensors.size();
}

bool is_training(const py::handle& module) {
  const int truth = PyObject_IsTrue(attribute(module, names().training).ptr());
  if (truth < 0) throw py::error_already_set();
  return truth != 0;
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
    if (left_out_.contains(tensor.unsafeGetTensorImpl())) continue;
    mirror->register_parameter(name, tensor, tensor.requires_grad());
  }
  for (const auto& [name, value] : entries(module, "_buffers")) {
    mirror->register_buffer(name, py::cast<at::Tensor>(value));
  }
  for (const auto& [name, child] : entries(module, "_modules")) {
    mirror->register_module(name, of(child));
  }
  mirror->tensors_ = tensors_of(module);
  mirror->training_ = is_training(module);
  return mirror;
}

void Mirrors::leave_out(const std::vector<at::Tensor>& parameters) {
  for (const at::Tensor& each : parameters) left_out_.insert(each.unsafeGetTensorImpl());
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
    if (!has_children(seen.module, seen.children)) return false;
    if (!has_tensors(seen.module, seen.mirror->tensors_)) return false;
    seen.mirror->training_ = is_training(seen.module);
  }
  return true;
}

}  // namespace reprise::python
