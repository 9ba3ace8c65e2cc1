#include "online.h"

#include <pybind11/stl.h>

#include <exception>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "../options.h"
#include "reprise/runtime/online.h"

namespace reprise::python {
namespace {

namespace rt = reprise::runtime;

// A Thrown stands for an exception of Python, of which only the message matters here.
struct Thrown : std::runtime_error {
  using std::runtime_error::runtime_error;
};

const OptionTable<rt::OnlineOptions>& online_table() {
  using O = rt::OnlineOptions;
  static const OptionTable<O> table = {
      {"budget", &O::budget},
      {"heuristic", &O::heuristic},
      {"smallest", &O::smallest},
      {"device", [](O& o, const std::string& text) { o.device = c10::Device(text); }},
      {"plan_after", &O::plan_after},
      {"plans", &O::plans},
      {"time_limit_ns", &O::time_limit},
      {"planning_share", &O::planning_share},
      {"plan_in_background", &O::plan_in_background},
  };
  return table;
}

class Online {
 public:
  explicit Online(const py::kwargs& keywords) : online_(online_table().read(keywords)) {}

  void begin() {
    const py::gil_scoped_release no_gil;  // It may wait for the step of another thread.
    online_.begin();
  }
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
  void wait_for_plan() {
    const py::gil_scoped_release no_gil;
    online_.wait_for_plan();
  }
  void stop_planning() {
    const py::gil_scoped_release no_gil;
    online_.stop_planning();
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
    found["planned"] = report.planned;
    found["matched_calls"] = report.matched_calls;
    found["planned_calls"] = report.planned_calls;
    found["unplanned_evictions"] = report.unplanned_evictions;
    found["why_not_planned"] = report.why_not_planned;
    found["planning_time_ns"] = report.planning_time.count();
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
      .def(py::init<const py::kwargs&>(), online_table().names().c_str())
      .def("begin", &Online::begin)
      .def("end", &Online::end)
      .def("undo", &Online::undo)
      .def("fail", &Online::fail, py::arg("message"))
      .def("wait_for_plan", &Online::wait_for_plan)
      .def("stop_planning", &Online::stop_planning)
      .def("report", &Online::report);
  m.def("online_heuristics", &heuristics);
}

}  // namespace reprise::python
