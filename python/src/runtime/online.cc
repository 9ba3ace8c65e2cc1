#include "online.h"

#include <pybind11/stl.h>

#include <exception>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "../results.h"
#include "reprise/runtime/online.h"

namespace reprise::python {
namespace {

namespace rt = reprise::runtime;

// An exception of Python, of which only the message matters here.
struct Thrown : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Online {
 public:
  Online(const BudgetArgument& budget, const std::string& heuristic, int64_t smallest)
      : online_(
            {.budget = budget_of(budget), .heuristic = heuristic, .smallest = Bytes(smallest)}) {}

  void begin() { online_.begin(); }
  void end() {
    const py::gil_scoped_release no_gil;
    online_.end();
  }
  void undo() {
    const py::gil_scoped_release no_gil;
    online_.undo();
  }
  // Undoes the step. Throws what lies behind the exception with this message, if it only says that an
  // operation found an operand missing.
  void fail(const std::string& message) {
    const py::gil_scoped_release no_gil;
    try {
      online_.fail(std::make_exception_ptr(Thrown(message)));
    } catch (const Thrown&) {
    }
  }
  py::dict report() const {
    const rt::OnlineReport report = online_.last_step();
    const bool limited = report.steps > 0 && report.budget < Budget().resolve(Bytes(0));
    py::dict found;
    found["budget_bytes"] = limited ? py::object(py::int_(report.budget.count())) : py::none();
    found["measured_peak_bytes"] = report.measured_peak.count();
    found["time_ns"] = report.time.count();
    found["calls"] = report.calls;
    found["evictions"] = report.evictions;
    found["evicted_bytes"] = report.evicted_bytes.count();
    found["reruns"] = report.reruns;
    found["rerun_cost"] = report.rerun_cost;
    found["kept_values"] = report.kept_values;
    found["steps"] = report.steps;
    return found;
  }

 private:
  rt::Online online_;
};

std::vector<std::pair<std::string, std::string>> heuristics() {
  std::vector<std::pair<std::string, std::string>> rows;
  for (const auto& row : rt::online_heuristics()) rows.emplace_back(row.name, row.description);
  return rows;
}

}  // namespace

void bind_online(py::module_& m) {
  py::class_<Online>(m, "Online")
      .def(py::init<const BudgetArgument&, const std::string&, int64_t>(), py::kw_only(),
           py::arg("budget"), py::arg("heuristic"), py::arg("smallest"))
      .def("begin", &Online::begin)
      .def("end", &Online::end)
      .def("undo", &Online::undo)
      .def("fail", &Online::fail, py::arg("message"))
      .def("report", &Online::report);
  m.def("online_heuristics", &heuristics);
}

}  // namespace reprise::python
