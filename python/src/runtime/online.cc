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

// A Thrown stands for an exception of Python, of which only the message matters here.
struct Thrown : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Online {
 public:
  Online(const BudgetArgument& budget, const std::string& heuristic, int64_t smallest,
         int plan_after, int plans, int64_t time_limit_ns, double planning_share,
         bool plan_in_background)
      : online_({.budget = budget_of(budget),
                 .heuristic = heuristic,
                 .smallest = Bytes(smallest),
                 .plan_after = plan_after,
                 .plans = plans,
                 .time_limit = Nanos(time_limit_ns),
                 .planning_share = planning_share,
                 .plan_in_background = plan_in_background}) {}

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
      .def(py::init<const BudgetArgument&, const std::string&, int64_t, int, int, int64_t, double,
                    bool>(),
           py::kw_only(), py::arg("budget"), py::arg("heuristic"), py::arg("smallest"),
           py::arg("plan_after"), py::arg("plans"), py::arg("time_limit_ns"),
           py::arg("planning_share"), py::arg("plan_in_background"))
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
