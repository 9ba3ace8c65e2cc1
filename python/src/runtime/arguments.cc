#include "arguments.h"

#include <algorithm>

#include "reprise/io/json.h"
#include "reprise/model/plan.h"

namespace reprise::python {

namespace rt = reprise::runtime;
using Text = std::string;

std::optional<int64_t> limit_or_none(Bytes budget) {
  if (budget == Budget().resolve(Bytes(0))) return std::nullopt;
  return budget.count();
}

std::function<Bytes()> foreseen_of(const ForeseenArgument& argument) {
  if (!argument) return {};
  return [call = *argument] {
    const pybind11::gil_scoped_acquire gil;
    return Bytes(call());
  };
}

std::vector<OverheadRow> overhead_rows(const std::vector<rt::Overhead>& overheads) {
  std::vector<OverheadRow> rows;
  for (const rt::Overhead& one : overheads) {
    rows.emplace_back(one.work, one.why, one.time.count(), one.found);
  }
  return rows;
}

rt::AlternativeOptions alternatives_of(const std::optional<std::vector<Text>>& names) {
  rt::AlternativeOptions options;
  if (!names) return options;
  options.only = *names;
  for (const rt::AlternativeInfo& kind : rt::alternatives()) {
    if (names->empty()) options.without.push_back(kind.name);
    const bool named = std::find(names->begin(), names->end(), kind.name) != names->end();
    if (named) options.allow = std::max(options.allow, kind.exactness);
  }
  return options;
}

std::vector<std::tuple<Text, Text, Text, bool, bool>> list_alternatives() {
  std::vector<std::tuple<Text, Text, Text, bool, bool>> rows;
  for (const rt::AlternativeInfo& kind : rt::alternatives()) {
    rows.emplace_back(kind.name, kind.description, to_string(kind.exactness), kind.in_graph,
                      kind.in_chain);
  }
  return rows;
}

std::optional<Text> text_of(const std::optional<RunLog>& log) {
  if (!log) return std::nullopt;
  return to_json(*log);
}

}  // namespace reprise::python
