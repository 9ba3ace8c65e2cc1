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

// A plan without moves takes longer than a plan without a budget. Returns the share of this extra
// time that a plan with moves saves.
std::optional<double> share_gone(const GraphResult& result, const Row* alone, const Row& moving) {
  if (alone == nullptr || !alone->time || !moving.time) return std::nullopt;
  const double above = *alone->time - result.unlimited;
  if (above <= 1e-4) return std::nullopt;
  return (*alone->time - std::max(result.unlimited, *moving.time)) / above;
}

const Row* row_of(const GraphResult& result, const std::string& planner, double budget) {
  for (const Row& row : result.rows) {
    if (row.planner == planner && row.budget == budget) return &row;
  }
  return nullptr;
}

std::string percent(const std::optional<double>& value) {
  return value ? fmt::format("{:.2f}", 100 * (*value - 1)) : std::string("none");
}

// Compares the planners that move values with the planner `graph`, over all graphs.
std::string moves_table(const std::vector<GraphResult>& results) {
  std::string text =
      "## With a second memory\n\nTimes are above plain training's, in %. The column \"no limit\" "
      "is "
      "what `graph` finds without a budget. The last column is the share of the time above that "
      "which "
      "moving takes off recomputing.\n\n"
      "| graph | channel, GB/s | no limit | budget | `graph` | planner | with moves | bound | gap, "
      "% | "
      "gone, % |\n"
      "|---|--:|--:|--:|--:|---|--:|--:|--:|--:|\n";
  double gone = 0, gap = 0;
  int shares = 0, gaps = 0;
  for (const GraphResult& result : results) {
    for (const Row& row : result.rows) {
      if (!row.moves) continue;
      const Row* alone = row_of(result, "graph", row.budget);
      const std::optional<double> share = share_gone(result, alone, row);
      std::optional<double> gap_here = row.gap();
      if (share) gone += *share, ++shares;
      if (gap_here) gap += *gap_here, ++gaps;
      if (gap_here) *gap_here *= 100;
      fmt::format_to(std::back_inserter(text),
                     "| {} | {:.1f} | {} | {:.2f} | {} | {} | {} | {} | {} | {} |\n", result.name,
                     result.channel / 1e9, percent(result.unlimited), row.budget,
                     alone == nullptr ? "" : percent(alone->time), row.planner, percent(row.time),
                     row.time ? percent(row.bound) : "", number(gap_here, 2),
                     share ? fmt::format("{:.0f}", 100 * *share) : std::string());
    }
  }
  fmt::format_to(std::back_inserter(text),
                 "\nThe mean of the last column is {:.0f} %, and the mean gap is {:.2f} %.\n\n",
                 100 * gone / std::max(1, shares), 100 * gap / std::max(1, gaps));
  return text;
}

// Sums up the planner that has a bound, over all graphs.
std::string summary(const std::vector<GraphResult>& results) {
  std::map<double, Sum, std::greater<>> sums;
  for (const GraphResult& result : results) {
    for (const Row& row : result.rows) {
      if (!row.bound || row.moves) continue;
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
      "This command writes the file again:\n\n{}\n- {}\n\n",
      as_code_block(info.command), measured(info));
  text += summary(results);
  const bool moves = std::any_of(results.begin(), results.end(),
                                 [](const GraphResult& result) { return result.channel > 0; });
  if (moves) text += moves_table(results);
  for (const GraphResult& result : results) text += table(result);
  return text;
}

std::string json(const RunInfo& info, const std::vector<GraphResult>& results) {
  ordered_json out{{"format", "reprise.bench.graph_plan"},
                   {"command", info.command},
                   {"measured", measured(info)},
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
