// This file has the arguments and results that both extensions share: budgets, observers, results
// of planning.
#pragma once

#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "reprise/io/json.h"
#include "reprise/model/observer.h"
#include "reprise/plan/plan.h"

namespace reprise::python {

namespace py = pybind11;

// A budget: None for no limit, a number of bytes, or a text such as "8 GiB" or "60%".
using BudgetArgument = std::variant<std::monostate, int64_t, std::string>;

inline Budget budget_of(const BudgetArgument& argument) {
  if (const auto* bytes = std::get_if<int64_t>(&argument)) return Budget(Bytes(*bytes));
  if (const auto* text = std::get_if<std::string>(&argument)) return Budget(*text);
  return {};
}

using ObserverArgument = std::optional<std::function<void(std::string, double, std::string)>>;

// Returns an observer that takes the GIL. Ctrl-C stops the work even if there is no Python observer.
inline Observer observer_of(const ObserverArgument& argument) {
  return [argument](const Progress& progress) {
    py::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    if (argument) (*argument)(progress.task, progress.fraction, progress.message);
  };
}

inline std::pair<int64_t, int64_t> pair_of(const Baseline& baseline) {
  return {baseline.peak.count(), baseline.time.count()};
}

// Returns the keyword arguments of reprise.PlanResult. Python still decodes the plan and the pairs. The
// caller holds the GIL.
inline py::dict dict_of(const PlanResult& result) {
  py::dict found;
  found["termination"] = to_string(result.termination);
  found["plan"] = result.plan ? py::object(py::str(to_json(*result.plan))) : py::none();
  found["planner"] = result.planner;
  found["schedule_class"] = result.schedule_class;
  const bool limited = result.budget < Budget().resolve(Bytes(0));
  found["budget_bytes"] = limited ? py::object(py::int_(result.budget.count())) : py::none();
  found["lower_bound_ns"] = result.lower_bound.count();
  found["baseline"] = pair_of(result.baseline);
  found["smallest_budget_bytes"] =
      result.smallest_budget ? py::object(py::int_(result.smallest_budget->count())) : py::none();
  found["blocking_op"] = result.blocking_op;
  found["search"] = std::pair(result.search.wall.count(), result.search.memory.count());
  return found;
}

}  // namespace reprise::python
