#include "watched.h"

#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>

namespace reprise::python {
namespace {

// Calls `visit` for each hook of the tensor, as long as `visit` returns true.
template <class Visit>
void for_each_hook(const py::object& tensor, Visit&& visit) {
  const auto* variable = reinterpret_cast<THPVariable*>(tensor.ptr());
  for (PyObject* table : {variable->backward_hooks, variable->post_accumulate_grad_hooks}) {
    if (table == nullptr || !PyDict_Check(table)) continue;
    PyObject *key = nullptr, *hook = nullptr;
    Py_ssize_t at = 0;
    while (PyDict_Next(table, &at, &key, &hook) != 0) {
      if (!visit(hook)) return;
    }
  }
}

}  // namespace

size_t Watched::add(const std::vector<py::dict>& dicts, const std::vector<py::object>& objects,
                    const std::vector<py::object>& tensors) {
  Group& group = groups_.emplace_back();
  for (const py::dict& dict : dicts) group.dicts.push_back({dict, {}, {}});
  for (const py::object& object : objects) group.objects.push_back({object, nullptr});
  for (const py::object& tensor : tensors) group.tensors.push_back({tensor, false, {}});
  renew(groups_.size() - 1);
  return groups_.size() - 1;
}

void Watched::renew(size_t number) {
  Group& group = groups_.at(number);
  for (Dict& watched : group.dicts) {
    watched.keys.clear();
    watched.values.clear();
    for (const auto& [key, value] : watched.dict) {
      watched.keys.push_back(py::reinterpret_borrow<py::object>(key));
      watched.values.push_back(py::reinterpret_borrow<py::object>(value));
    }
  }
  for (Object& watched : group.objects) watched.type = Py_TYPE(watched.object.ptr());
  for (Tensor& watched : group.tensors) {
    watched.requires_grad = THPVariable_Unpack(watched.tensor.ptr()).requires_grad();
    watched.hooks.clear();
    for_each_hook(watched.tensor, [&](PyObject* hook) {
      watched.hooks.push_back(py::reinterpret_borrow<py::object>(hook));
      return true;
    });
  }
}

bool Watched::holds(const Tensor& watched) {
  if (THPVariable_Unpack(watched.tensor.ptr()).requires_grad() != watched.requires_grad)
    return false;
  size_t count = 0;
  for_each_hook(watched.tensor, [&](PyObject* hook) {
    return count < watched.hooks.size() && hook == watched.hooks[count].ptr() && ++count > 0;
  });
  size_t now = 0;
  for_each_hook(watched.tensor, [&](PyObject*) { return ++now > 0; });
  return count == watched.hooks.size() && now == count;
}

bool Watched::holds(const Group& group) {
  for (const Object& watched : group.objects) {
    if (Py_TYPE(watched.object.ptr()) != watched.type) return false;
  }
  for (const Dict& watched : group.dicts) {
    if (PyDict_GET_SIZE(watched.dict.ptr()) != static_cast<Py_ssize_t>(watched.keys.size()))
      return false;
    PyObject *key = nullptr, *value = nullptr;
    Py_ssize_t at = 0;
    for (size_t i = 0; PyDict_Next(watched.dict.ptr(), &at, &key, &value) != 0; ++i) {
      if (key != watched.keys[i].ptr() || value != watched.values[i].ptr()) return false;
    }
  }
  return std::all_of(group.tensors.begin(), group.tensors.end(),
                     [](const Tensor& tensor) { return holds(tensor); });
}

std::vector<size_t> Watched::changed() const {
  std::vector<size_t> numbers;
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (!holds(groups_[g])) numbers.push_back(g);
  }
  return numbers;
}

}  // namespace reprise::python
