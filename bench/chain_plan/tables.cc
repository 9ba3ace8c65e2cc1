#include "tables.h"

#include <fmt/format.h>

#include <iterator>
#include <nlohmann/json.hpp>

namespace reprise::bench {
namespace {

using nlohmann::ordered_json;

std::string percent(const std::optional<double>& share) {
  return share ? fmt::format("{:.3f}", 100 * *share) : std::string();
}

double mib(Bytes bytes) { return static_cast<double>(bytes.count()) / (1 << 20); }

std::string line(const Row& row) {
  if (!row.skipped.empty()) {
    return fmt::format("| {:.0f} % | {} | | | | | | skipped: {} |\n", 100 * row.budget, row.planner,
                       row.skipped);
  }
  std::string note = row.termination;
  if (row.smallest) note += fmt::format(": {:.1f} % needed", 100 * *row.smallest);
  if (row.over_budget > 0) note = fmt::format("**{:.2f} % over budget**", 100 * row.over_budget);
  const std::optional<double> gap =
      row.overhead && row.bound ? std::optional(*row.overhead - *row.bound) : std::nullopt;
  return fmt::format("| {:.0f} % | {} | {:.3f} | {:.1f} | {} | {} | {} | {} |\n", 100 * row.budget,
                     row.planner, row.seconds, mib(row.tables), percent(row.overhead),
                     percent(row.bound), percent(gap), note);
}

// Returns the row of a method at a budget, and the last one if there are several time limits.
// Returns nullptr if there is no row.
const Row* row_of(const ChainResult& result, const std::string& method, double budget) {
  const Row* found = nullptr;
  for (const Row& row : result.rows) {
    if (row.method == method && row.budget == budget) found = &row;
  }
  return found;
}

std::string overhead_at_a_glance(const Row* row) {
  if (row == nullptr || !row->skipped.empty()) return "";
  if (row->over_budget > 0) return fmt::format("{}, over budget", percent(row->overhead));
  return row->overhead ? percent(row->overhead) : row->termination;
}

// Returns overhead, gap and time of a planner that proves a bound.
std::string search_at_a_glance(const Row* row) {
  if (row == nullptr) return " | | ";
  const std::optional<double> gap =
      row->overhead && row->bound ? std::optional(*row->overhead - *row->bound) : std::nullopt;
  return fmt::format("{} | {} | {:.3f}", overhead_at_a_glance(row), percent(gap), row->seconds);
}

std::string glance_table(const std::vector<ChainResult>& chains) {
  if (chains.empty()) return {};
  std::string text =
      "## At a glance\n\nOverheads are times over plain training's, less 1, in per cent, with the "
      "longest time limit of the run.\nGaps are those to the planner's own bound, in points.\n\n"
      "| chain | stages | budget | published | periodic | min_peak | persistent | gap | s | "
      "with dropped inputs | gap | s |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n";
  for (const ChainResult& chain : chains) {
    for (const Row& row : chain.rows) {
      if (row.method != "published") continue;  // one row for each budget
      const auto of = [&](const char* method) { return row_of(chain, method, row.budget); };
      fmt::format_to(std::back_inserter(text), "| {} | {} | {:.0f} % | {} | {} | {} | {} | {} |\n",
                     chain.name, chain.stages, 100 * row.budget, overhead_at_a_glance(&row),
                     overhead_at_a_glance(of("periodic")), overhead_at_a_glance(of("min_peak")),
                     search_at_a_glance(of("chain, persistent")), search_at_a_glance(of("chain")));
    }
  }
  return text + "\n";
}

std::string chain_table(const ChainResult& result) {
  const std::string origin = result.origin.empty() ? "" : result.origin + "\n\n";
  std::string text = fmt::format(
      "## {}\n\n{}The chain has {} stages, {} of them different. Plain training needs {} and takes "
      "{}.\n\n"
      "| budget | planner | search, s | tables, MiB | overhead, % | bound, % | gap, points | |\n"
      "|--:|---|--:|--:|--:|--:|--:|---|\n",
      result.name, origin, result.stages, result.different, format_bytes(result.plain_peak),
      format_duration(result.plain_time));
  for (const Row& row : result.rows) text += line(row);
  return text + "\n";
}

std::string curve_table(const std::vector<CurveResult>& curves) {
  if (curves.empty()) return {};
  std::string text =
      "## The whole curve\n\n`frontier()` finds the answers to all budgets at once.\n\n"
      "| chain | search, s | points | |\n|---|--:|--:|---|\n";
  for (const CurveResult& curve : curves) {
    fmt::format_to(std::back_inserter(text), "| {} | {:.3f} | {} | {} |\n", curve.name,
                   curve.seconds, curve.points, curve.exact ? "exact" : "out of time");
  }
  return text + "\n";
}

ordered_json number(const std::optional<double>& value) {
  return value ? ordered_json(*value) : ordered_json();
}

ordered_json to_json(const Row& row) {
  ordered_json out{{"planner", row.planner}, {"budget", row.budget}};
  if (!row.skipped.empty()) {
    out["skipped"] = row.skipped;
    return out;
  }
  out["seconds"] = row.seconds;
  out["table_bytes"] = row.tables.count();
  out["termination"] = row.termination;
  out["smallest_budget"] = number(row.smallest);
  out["overhead"] = number(row.overhead);
  out["bound"] = number(row.bound);
  out["over_budget"] = row.over_budget;
  return out;
}

}  // namespace

std::string markdown(const RunInfo& info, const Results& results) {
  std::string text = fmt::format(
      "# Planning chains: time, memory and quality of the search\n\n"
      "A program writes this file, so do not edit it.\n"
      "[Benchmarks](../benchmarks.md#how-planning-chains-is-measured) says what is measured, how, "
      "and how to read it.\n"
      "This command writes the file again:\n\n{}\n- {}\n\n",
      as_code_block(info.command), measured(info));
  text += glance_table(results.chains);
  for (const ChainResult& chain : results.chains) text += chain_table(chain);
  return text + curve_table(results.curves);
}

std::string json(const RunInfo& info, const Results& results) {
  ordered_json out{{"format", "reprise.bench.chain_plan"},
                   {"command", info.command},
                   {"measured", measured(info)},
                   {"chains", ordered_json::array()},
                   {"curves", ordered_json::array()}};
  for (const ChainResult& chain : results.chains) {
    ordered_json rows = ordered_json::array();
    for (const Row& row : chain.rows) rows.push_back(to_json(row));
    out["chains"].push_back({{"name", chain.name},
                             {"origin", chain.origin},
                             {"stages", chain.stages},
                             {"different_stages", chain.different},
                             {"plain_peak", chain.plain_peak.count()},
                             {"plain_ns", chain.plain_time.count()},
                             {"rows", rows}});
  }
  for (const CurveResult& curve : results.curves) {
    out["curves"].push_back({{"name", curve.name},
                             {"seconds", curve.seconds},
                             {"points", curve.points},
                             {"exact", curve.exact}});
  }
  return out.dump(1) + "\n";
}

}  // namespace reprise::bench
