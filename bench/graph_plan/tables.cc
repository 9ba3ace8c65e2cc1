#include "tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>

namespace reprise::bench {
namespace {

using nlohmann::ordered_json;

std::string number(const std::optional<double>& value, int digits) {
  return value ? fmt::format("{:.{}f}", *value, digits) : std::string();
}

std::string line(const Row& row) {
  std::string note = row.termination;
  if (row.smallest) note += fmt::format(", smallest found {:.3f}", *row.smallest);
  std::optional<double> gap = row.gap();
  if (gap) *gap *= 100;
  return fmt::format("| {:.2f} | {} | {:.2f} | {:.2f} | {} | {} | {} | {} | {} |\n", row.budget,
                     row.planner, row.seconds, row.processor_seconds, number(row.peak, 3),
                     number(row.time, 4), number(row.bound, 4), number(gap, 2), note);
}

std::string table(const GraphResult& result) {
  std::string text = fmt::format(
      "## {}\n\nThe graph has {} ops. Plain training needs {} and takes {}.\n\n"
      "| budget | planner | search, s | processor, s | peak | time | bound | gap, % | |\n"
      "|--:|---|--:|--:|--:|--:|--:|--:|---|\n",
      result.name, result.ops, format_bytes(result.plain_peak), format_duration(result.plain_time));
  for (const Row& row : result.rows) text += line(row);
  return text + "\n";
}

struct Sum {
  int plans = 0, rows = 0, infeasible = 0;
  double gap = 0, worst_gap = 0, seconds = 0, slowest = 0;
};

// Sums up the planner that has a bound, over all graphs.
std::string summary(const std::vector<GraphResult>& results) {
  std::map<double, Sum, std::greater<>> sums;
  for (const GraphResult& result : results) {
    for (const Row& row : result.rows) {
      if (!row.bound) continue;
      Sum& sum = sums[row.budget];
      ++sum.rows;
      sum.infeasible += row.termination == "infeasible";
      sum.seconds += row.seconds;
      sum.slowest = std::max(sum.slowest, row.seconds);
      if (!row.gap()) continue;
      ++sum.plans;
      sum.gap += *row.gap();
      sum.worst_gap = std::max(sum.worst_gap, *row.gap());
    }
  }
  std::string text =
      "## All graphs\n\nThe table is of the planner `graph`. The gap is the time of the plan over "
      "the certified bound, less 1.\n\n"
      "| budget | graphs | plans | proven infeasible | mean gap, % | largest gap, % | mean search, "
      "s | "
      "longest search, s |\n|--:|--:|--:|--:|--:|--:|--:|--:|\n";
  for (const auto& [budget, sum] : sums) {
    fmt::format_to(std::back_inserter(text),
                   "| {:.2f} | {} | {} | {} | {:.2f} | {:.2f} | {:.2f} | {:.2f} |\n", budget,
                   sum.rows, sum.plans, sum.infeasible, 100 * sum.gap / std::max(1, sum.plans),
                   100 * sum.worst_gap, sum.seconds / std::max(1, sum.rows), sum.slowest);
  }
  return text + "\n";
}

ordered_json to_json(const std::optional<double>& value) {
  return value ? ordered_json(*value) : ordered_json();
}

ordered_json to_json(const Row& row) {
  return {{"planner", row.planner},
          {"budget", row.budget},
          {"termination", row.termination},
          {"seconds", row.seconds},
          {"processor_seconds", row.processor_seconds},
          {"peak", to_json(row.peak)},
          {"time", to_json(row.time)},
          {"bound", to_json(row.bound)},
          {"smallest", to_json(row.smallest)}};
}

}  // namespace

std::string markdown(const RunInfo& info, const std::vector<GraphResult>& results) {
  std::string text = fmt::format(
      "# Planning graphs: time and quality of the search\n\n"
      "A program writes this file, so do not edit it.\n"
      "[Benchmarks](../benchmarks.md#how-planning-graphs-is-measured) says what is measured, how, "
      "and how to read it.\n"
      "This command writes the file again:\n\n{}\n"
      "- Machine: {}\n- {} build\n\n",
      as_code_block(info.command), info.processor, info.build);
  text += summary(results);
  for (const GraphResult& result : results) text += table(result);
  return text;
}

std::string json(const RunInfo& info, const std::vector<GraphResult>& results) {
  ordered_json out{{"format", "reprise.bench.graph_plan"},
                   {"command", info.command},
                   {"processor", info.processor},
                   {"build", info.build},
                   {"graphs", ordered_json::array()}};
  for (const GraphResult& result : results) {
    ordered_json rows = ordered_json::array();
    for (const Row& row : result.rows) rows.push_back(to_json(row));
    out["graphs"].push_back({{"name", result.name},
                             {"ops", result.ops},
                             {"plain_peak", result.plain_peak.count()},
                             {"plain_ns", result.plain_time.count()},
                             {"rows", rows}});
  }
  return out.dump(1) + "\n";
}

}  // namespace reprise::bench
