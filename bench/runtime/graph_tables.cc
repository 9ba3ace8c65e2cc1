#include "graph_tables.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

namespace reprise::bench {
namespace {

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

std::string shape(const training::ModelConfig& config) {
  return fmt::format("{}", fmt::join(config.input, "x"));
}

std::string ratio_text(const std::vector<double>& ratios) {
  return fmt::format("{:.3f} ({:.3f})", median(ratios), smallest(ratios));
}

}  // namespace

std::string markdown_of_parts(const GraphResult& result) {
  std::string text = fmt::format(
      "\n### {}, {}\n\nPlain training of the whole batch takes {:.1f} ms ({:.1f} with the default "
      "malloc).\nIts peak is {:.1f} MB above parameters, buffers and batch.\n\n"
      "| budget | parts | time (least) | peak | predicted | gap | captured and planned in | arena "
      "/ "
      "live |\n|---|---|---|---|---|---|---|---|\n",
      result.config.model, shape(result.config), result.plain_time, result.default_plain_time,
      static_cast<double>(result.plain_peak - result.level) / 1e6);
  for (const GraphRow& row : result.rows) {
    text += row.planned
                ? fmt::format("| {:.2f} | {} | {} | {:.3f} | {:.3f} | {:.2f} % | {:.1f} s | {} |\n",
                              row.share, row.parts, ratio_text(row.ratios), row.peak, row.predicted,
                              100 * row.gap, row.planning,
                              row.arena == 0 ? "heap" : fmt::format("{:.4f}", row.arena))
                : fmt::format("| {:.2f} | - | | | | | {:.1f} s | |\n", row.share, row.planning);
  }
  return text;
}

std::string markdown(const GraphResult& result) {
  std::string text = fmt::format(
      "\n### {}, {}\n\nThe graph has {} ops, captured and measured in {:.1f} s. Plain training "
      "takes {:.1f} ms ({:.1f} with the\ndefault malloc), and its peak is {:.1f} MB above "
      "parameters, buffers and batch. The smallest peak with\na plan is {:.3f}.\n\n"
      "| budget | graph mode, time (least) | peak | predicted | gap | planned in | arena / live | "
      "chain mode, "
      "time (least) | peak |\n|---|---|---|---|---|---|---|---|---|\n",
      result.config.model, shape(result.config), result.ops, result.capture, result.plain_time,
      result.default_plain_time, static_cast<double>(result.plain_peak - result.level) / 1e6,
      result.floor);
  for (const GraphRow& row : result.rows) {
    text += fmt::format("| {:.2f} |", row.share);
    if (row.planned) {
      text += fmt::format(" {} | {:.3f} | {:.3f} | {:.2f} % | {:.1f} s | {} |",
                          ratio_text(row.ratios), row.peak, row.predicted, 100 * row.gap,
                          row.planning, row.arena == 0 ? "heap" : fmt::format("{:.4f}", row.arena));
    } else {
      text += fmt::format(" - | | | | {:.1f} s | |", row.planning);
    }
    text += row.chain_planned
                ? fmt::format(" {} | {:.3f} |\n", ratio_text(row.chain_ratios), row.chain_peak)
                : std::string(" - | |\n");
  }
  return text;
}

nlohmann::ordered_json to_json(const GraphResult& result) {
  nlohmann::ordered_json json = {{"model", result.config.model},
                                 {"shape", shape(result.config)},
                                 {"operations", result.ops},
                                 {"plain_ms", result.plain_time},
                                 {"plain_default_malloc_ms", result.default_plain_time},
                                 {"plain_peak", result.plain_peak},
                                 {"level", result.level},
                                 {"floor", result.floor},
                                 {"rows", nlohmann::ordered_json::array()}};
  for (const GraphRow& row : result.rows) {
    json["rows"].push_back({{"share", row.share},
                            {"parts", row.parts},
                            {"peak", row.peak},
                            {"predicted", row.predicted},
                            {"gap", row.gap},
                            {"planning_s", row.planning},
                            {"arena", row.arena},
                            {"fallbacks", row.fallbacks},
                            {"ratios", row.ratios},
                            {"chain_peak", row.chain_peak},
                            {"chain_ratios", row.chain_ratios}});
  }
  return json;
}

}  // namespace reprise::bench
