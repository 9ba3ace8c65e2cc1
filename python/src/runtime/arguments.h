// These are arguments and answers that captured steps and chains of stages have in common.
#pragma once

#include <pybind11/functional.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "reprise/model/runlog.h"
#include "reprise/model/units.h"
#include "reprise/runtime/alternatives.h"
#include "reprise/runtime/overhead.h"

namespace reprise::python {

// Calls a function that may wait for another thread, which may need the GIL.
template <class Function>
auto without_gil(Function&& function) {
  const pybind11::gil_scoped_release no_gil;
  return function();
}

// A function of Python that returns the bytes which the program will take outside of a step, or None.
using ForeseenArgument = std::optional<std::function<int64_t()>>;
std::function<Bytes()> foreseen_of(const ForeseenArgument& argument);

// The fields of overheads.
using OverheadRow = std::tuple<std::string, std::string, int64_t, std::string>;
std::vector<OverheadRow> overhead_rows(const std::vector<runtime::Overhead>& overheads);

// Returns the budget of a report, or nothing if there is no limit.
std::optional<int64_t> limit_or_none(Bytes budget);

// Returns the options for a list of names: these kinds and no others, however exact they are. Without a
// list, all kinds that leave the same bits are allowed.
runtime::AlternativeOptions alternatives_of(const std::optional<std::vector<std::string>>& names);

// Returns the kinds of alternatives: name, description, exactness, and whether graph mode and chain
// mode have them.
std::vector<std::tuple<std::string, std::string, std::string, bool, bool>> list_alternatives();

// Returns the run log as JSON, or nothing if no step was measured.
std::optional<std::string> text_of(const std::optional<RunLog>& log);

}  // namespace reprise::python
