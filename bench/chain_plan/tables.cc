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
  if (row.over_budget > 0) note = fmt::format("**{:.2f} % over budget**", 100 * row.over_budget);
  const std::optional<double> gap =
      row.overhead && row.bound ? std::optional(*row.overhead - *row.bound) : std::nullopt;
  return fmt::format("| {:.0f} % | {} | {:.3f} | {:.1f} | {} | {} | {} | {} |\n", 100 * row.budget,
                     row.planner, row.seconds, mib(row.tables), percent(row.overhead),
                     percent(row.bound), percent(gap), note);
}

std::string chain_table(const ChainResult& result) {
  std::string text = fmt::format(
      "## {}\n\n{} stages; plain training's peak: {}.\n\n"
      "| budget | planner | search, s | tables, MiB | overhead, % | bound, % | gap, points | |\n"
      "|--:|---|--:|--:|--:|--:|--:|---|\n",
      result.name, result.stages, format_bytes(result.plain_peak));
  for (const Row& row : result.rows) text += line(row);
  return text + "\n";
}

std::string curve_table(const std::vector<CurveResult>& curves) {
  if (curves.empty()) return {};
  std::string text =
      "## The whole curve\n\n`frontier()` with the default planner: every budget at once.\n\n"
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
  out["overhead"] = number(row.overhead);
  out["bound"] = number(row.bound);
  out["over_budget"] = row.over_budget;
  return out;
}

}  // namespace

std::string markdown(const RunInfo& info, const Results& results) {
  std::string text = fmt::format(
      "# Planning chains: time, memory and quality of the search\n\n"
      "Written by a program; do not edit. What is measured, how, and how to read it: "
      "[benchmarks.md](../benchmarks.md#planning-chains).\n\n"
      "- Reproduce: `{}`\n- Machine: {}\n- {} build\n\n",
      info.command, info.processor, info.build);
  for (const ChainResult& chain : results.chains) text += chain_table(chain);
  return text + curve_table(results.curves);
}

std::string json(const RunInfo& info, const Results& results) {
  ordered_json out{{"format", "reprise.bench.chain_plan"}, {"command", info.command},
                   {"processor", info.processor},          {"build", info.build},
                   {"chains", ordered_json::array()},      {"curves", ordered_json::array()}};
  for (const ChainResult& chain : results.chains) {
    ordered_json rows = ordered_json::array();
    for (const Row& row : chain.rows) rows.push_back(to_json(row));
    out["chains"].push_back({{"name", chain.name},
                             {"stages", chain.stages},
                             {"plain_peak", chain.plain_peak.count()},
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
