#include "refused.h"

#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>

#include <mutex>
#include <optional>
#include <string>
#include <tuple>

#include "../errors.h"
#include "reprise/model/errors.h"
#include "reprise/runtime/allocator.h"
#include "reprise/runtime/miss.h"
#include "reprise/runtime/peer_error.h"

namespace reprise::python {
namespace {

namespace rt = reprise::runtime;
using Text = std::string;

// This is the class reprise.BudgetError. The reference is held until the process ends.
PyObject* budget_error_class = nullptr;

// A Refused is the exception of a refused request for memory. PyTorch's bindings hand it on as a
// reprise.BudgetError, wherever in a step it comes from. Only its message survives that, so
// refuse() keeps the numbers.
struct Refused final : torch::PyTorchError {
  explicit Refused(const BudgetError& e) : torch::PyTorchError(e.what()), error(e) {}
  PyObject* python_type() override { return budget_error_class; }
  BudgetError error;
};

std::mutex refusal_mutex;
std::optional<BudgetError> last_refused;

void refuse(const BudgetError& error) {
  {
    std::lock_guard<std::mutex> lock(refusal_mutex);
    last_refused = error;
  }
  throw Refused(error);
}

std::optional<std::tuple<Text, int64_t, int64_t, int64_t>> last_refusal() {
  std::lock_guard<std::mutex> lock(refusal_mutex);
  if (!last_refused) return std::nullopt;
  return std::tuple(Text(last_refused->what()), last_refused->budget(), last_refused->live(),
                    last_refused->requested());
}

void translate(std::exception_ptr pointer) {
  try {
    if (pointer) std::rethrow_exception(pointer);
  } catch (const rt::StepMiss& miss) {
    set_error("StepMiss", miss.what(), miss.of_reads(), miss.of_function(), miss.of_gradients());
  } catch (const rt::PeerError& error) {
    set_error("PeerError", error.what());
  } catch (const Refused& refused) {
    translate_error(std::make_exception_ptr(refused.error));
  } catch (...) {
    translate_error(pointer);
  }
}

}  // namespace

void bind_refusals(py::module_& m) {
  budget_error_class =
      py::object(py::module_::import("reprise.errors").attr("BudgetError")).release().ptr();
  rt::set_refusal(&refuse);
  py::register_local_exception_translator(&translate);
  m.def("last_refusal", &last_refusal);
}

}  // namespace reprise::python
