#include "saved.h"

#include <torch/csrc/utils/pybind.h>

#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "reprise/io/json.h"
#include "reprise/io/tensors.h"
#include "reprise/model/errors.h"
#include "reprise/runtime/allocator.h"
#include "reprise/runtime/saved_state.h"
#include "runtime/saved/tensor_files.h"

namespace reprise::python {

namespace py = pybind11;
namespace saved = reprise::runtime::internal::saved;
using Text = std::string;

namespace {

const TensorEntry& entry_of(const TensorFile& file, const Text& name) {
  const TensorEntry* found = file.table().find(name);
  if (found == nullptr) throw InputError("the file has no tensor " + name);
  return *found;
}

std::vector<std::tuple<Text, Text, std::vector<int64_t>>> rows_of(const TensorFile& file) {
  std::vector<std::tuple<Text, Text, std::vector<int64_t>>> rows;
  for (const TensorEntry& entry : file.table().tensors) {
    rows.emplace_back(entry.name, entry.type, entry.shape);
  }
  return rows;
}

}  // namespace

void bind_saved(py::module_& m) {
  using NoGil = py::call_guard<py::gil_scoped_release>;
  m.def(
      "write_tensors",
      [](const Text& path, const std::map<Text, Text>& metadata,
         const saved::NamedTensors& tensors) { saved::write_tensors(path, metadata, tensors); },
      py::arg("path"), py::arg("metadata"), py::arg("tensors"), NoGil());
  m.def("drop_between_steps", &runtime::drop_between_steps, py::arg("tensors"), NoGil());
  m.def("tensor_type", &saved::file_type, py::arg("tensor"), py::arg("name"), NoGil());
  m.def(
      "plan_sha256", [](const Text& text) { return runtime::plan_sha256(parse_plan(text)); },
      py::arg("text"), NoGil());
  m.def("tensor_checksum", &saved::checksum, py::arg("tensor"), NoGil());
  m.def(
      "file_checksum",
      [](const Text& path) {
        const auto [bytes, sum] = file_checksum(path);
        return std::pair(bytes.count(), sum);
      },
      py::arg("path"), NoGil());
  py::class_<TensorFile>(m, "TensorFile")
      .def(py::init<const Text&>(), py::arg("path"), NoGil())
      .def("metadata", [](const TensorFile& file) { return file.table().metadata; })
      .def("tensors", &rows_of)
      .def("verify", &TensorFile::verify, NoGil())
      .def(
          "read",
          [](const TensorFile& file, const Text& name) {
            return saved::read_tensor(file, entry_of(file, name));
          },
          py::arg("name"), NoGil())
      .def(
          "read_into",
          [](const TensorFile& file, const Text& name, const at::Tensor& tensor) {
            const TensorEntry& entry = entry_of(file, name);
            const Text other = saved::difference(entry, tensor);
            if (!other.empty()) throw InputError(name + " " + other);
            saved::read_into(file, entry, tensor);
          },
          py::arg("name"), py::arg("tensor"), NoGil());
}

}  // namespace reprise::python
