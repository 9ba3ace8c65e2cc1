#include "tables.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "comparison.h"

namespace reprise::bench {
namespace {

using nlohmann::ordered_json;

double mib(int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }
double share(int64_t part, int64_t whole) {
  return static_cast<double>(part) / static_cast<double>(whole);
}

void add_row(std::string& text, const ModelResult& result, const std::string& name,
             const Setting& setting) {
  const Setting& plain = result.settings[0];
  const bool reprise = setting.kind == Kind::kReprise;
  fmt::format_to(
      std::back_inserter(text),
      "| {} | {:.1f} | {:.3f} | {:.1f} | {:.3f} | {:.2f} | {:.2f} | {:.3f} | {} | {} |\n", name,
      mib(setting.peak), share(setting.peak, plain.peak), mib(setting.above),
      share(setting.above, plain.above), median(setting.times), quantile(setting.times, 0),
      median(ratios(setting.times, plain.times)),
      reprise ? fmt::format("{:.3f}", 1 + setting.predicted_overhead) : std::string(),
      setting.bitwise ? std::string("same bits")
                      : fmt::format("{:.1g} off", setting.gradient_error));
}

std::string settings_table(const ModelResult& result) {
  std::string text =
      "| setting | peak, MiB | of plain | above level, MiB | of plain | median, ms | minimum, ms | "
      "x plain "
      "| planned x | gradients |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|---|\n";
  add_row(text, result, "plain", result.settings[0]);
  for (const Setting& setting : result.settings) {
    if (setting.kind != Kind::kPeriodic) continue;
    add_row(text, result, fmt::format("periodic, k = {}", setting.segments), setting);
  }
  for (const Request& request : result.requests) {
    if (!request.share) continue;
    const std::string name = fmt::format("**Reprise**, budget {:.0f} %", 100 * *request.share);
    if (request.setting) {
      add_row(text, result, name, result.settings[*request.setting]);
    } else {
      fmt::format_to(std::back_inserter(text), "| {} | infeasible | | | | | | | | |\n", name);
    }
  }
  return text;
}

std::string floor_text(const ModelResult& result) {
  if (!result.floor) return {};
  const Floor& floor = *result.floor;
  std::string text =
      fmt::format("The smallest feasible budget is {:.1f} MiB, {:.3f} of plain's peak.\n`{}`",
                  mib(floor.budget), share(floor.budget, result.settings[0].peak), floor.op);
  if (!floor.stage.empty()) text += fmt::format(" (stage `{}`)", floor.stage);
  text += " sets it.\nAt its peak, most memory is held by";
  for (const auto& [id, bytes] : floor.holders) {
    fmt::format_to(std::back_inserter(text), " {} {:.1f} MiB,", id, mib(bytes));
  }
  text.back() = '.';
  return text + "\n";
}

std::string comparison_table(const ModelResult& result) {
  std::string text =
      "| budget, MiB: the peak of | best periodic within it | ms | Reprise: peak, MiB | ms | x "
      "best periodic | quartiles | of | Reprise is |\n|---|---|--:|--:|--:|--:|---|---|---|\n";
  for (const Comparison& c : comparisons(result)) {
    const Setting& best = result.settings[c.best];
    fmt::format_to(std::back_inserter(text), "| {:.1f}: k = {} | k = {} | {:.2f} | ",
                   mib(c.request->budget), result.settings[c.periodic].segments, best.segments,
                   median(best.times));
    if (c.ratio.empty()) {
      fmt::format_to(std::back_inserter(text), "infeasible{} | | | | | |\n",
                     result.floor
                         ? fmt::format(", {} B too small", result.floor->budget - c.request->budget)
                         : std::string());
      continue;
    }
    const Setting& reprise = result.settings[*c.request->setting];
    fmt::format_to(
        std::back_inserter(text), "{:.1f} | {:.2f} | {:.3f} | {:.3f} - {:.3f} | {} {} | {} |\n",
        mib(reprise.peak), median(reprise.times), median(c.ratio), quantile(c.ratio, 0.25),
        quantile(c.ratio, 0.75), c.ratio.size(), c.pairs ? "pairs" : "rounds", verdict(c.ratio));
  }
  return text;
}

std::string model_text(const ModelResult& result) {
  std::string text = fmt::format("\n## {}\n\n", describe(result.config));
  if (!result.failure.empty()) {
    return text + fmt::format("**Failed, nothing is reported:** {}\n", result.failure);
  }
  fmt::format_to(
      std::back_inserter(text),
      "The chain has {} stages. Parameters, buffers and batch are {:.1f} MiB (the level). Reprise "
      "holds {} B\n"
      "more between steps. A sample is the mean of {} step{}. The longest planning took {:.2f} "
      "s.\n\n",
      result.stages, mib(result.level), result.held, result.steps, result.steps == 1 ? "" : "s",
      result.planning);
  text += settings_table(result);
  text += "\n";
  if (const std::string floor = floor_text(result); !floor.empty()) text += floor + "\n";
  text += "The next table has the peak of each periodic setting as the budget:\n\n";
  return text + comparison_table(result);
}

std::string overview(const std::vector<ModelResult>& results) {
  std::string text =
      "## Overview\n\n\"Peaks\" are the distinct peaks of the periodic settings. Reprise got each "
      "of them as its budget.\n\n"
      "| model | plain: peak, MiB | ms | smallest feasible budget | least periodic peak | peaks | "
      "Reprise "
      "faster | same | slower | infeasible | worst x best periodic |\n"
      "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n";
  for (const ModelResult& result : results) {
    if (!result.failure.empty()) {
      fmt::format_to(std::back_inserter(text), "| {} | failed | | | | | | | | | |\n",
                     result.config.model);
      continue;
    }
    const Setting& plain = result.settings[0];
    int faster = 0, same = 0, slower = 0, infeasible = 0, all = 0;
    double worst = 0;
    for (const Comparison& c : comparisons(result)) {
      ++all;
      if (c.ratio.empty()) {
        ++infeasible;
        continue;
      }
      const std::string_view is = verdict(c.ratio);
      ++(is == "faster" ? faster : is == "slower" ? slower : same);
      worst = std::max(worst, median(c.ratio));
    }
    int64_t least = plain.peak;
    for (const Setting& setting : result.settings) {
      if (setting.kind == Kind::kPeriodic) least = std::min(least, setting.peak);
    }
    fmt::format_to(
        std::back_inserter(text),
        "| {} | {:.1f} | {:.1f} | {} | {:.3f} | {} | {} | {} | {} | {} | {} |\n",
        describe(result.config), mib(plain.peak), median(plain.times),
        result.floor ? fmt::format("{:.3f}", share(result.floor->budget, plain.peak)) : "< 0.300",
        share(least, plain.peak), all, faster, same, slower, infeasible,
        all > infeasible ? fmt::format("{:.3f}", worst) : std::string());
  }
  return text;
}

std::string executor_table(const std::vector<ModelResult>& results) {
  std::string text =
      "\n## Cost of the executor\n\nReprise without a limit and plain training run the same ops. "
      "So the difference is the executor.\nThe ratios are those of pairs of neighbouring "
      "samples.\n\n"
      "| model | plain: median, ms | minimum | Reprise: median, ms | minimum | median ratio | "
      "quartiles | "
      "least ratio | ratio of minima |\n|---|--:|--:|--:|--:|--:|---|--:|--:|\n";
  for (const ModelResult& result : results) {
    for (const ExecutorCost& cost : result.executor) {
      fmt::format_to(std::back_inserter(text),
                     "| {} | {:.2f} | {:.2f} | {:.2f} | {:.2f} | {:.4f} | {:.4f} - {:.4f} | {:.4f} "
                     "| {:.4f} |\n",
                     describe(cost.config), cost.plain_median, cost.plain_min, cost.reprise_median,
                     cost.reprise_min, median(cost.ratios), quantile(cost.ratios, 0.25),
                     quantile(cost.ratios, 0.75), quantile(cost.ratios, 0),
                     cost.reprise_min / cost.plain_min);
    }
  }
  return text;
}

ordered_json to_json(const training::ModelConfig& config) {
  return {{"model", config.model},           {"input", config.input},
          {"classes", config.classes},       {"width", config.width},
          {"layers", config.layers},         {"heads", config.heads},
          {"vocabulary", config.vocabulary}, {"dropout", config.dropout}};
}

ordered_json to_json(const Setting& setting) {
  constexpr const char* kNames[] = {"plain", "periodic", "reprise"};
  ordered_json out{{"kind", kNames[static_cast<int>(setting.kind)]}};
  if (setting.kind == Kind::kPeriodic) out["segments"] = setting.segments;
  if (setting.kind == Kind::kReprise) {
    out["budget"] = setting.budget;
    out["predicted_peak"] = setting.peak;  // verified
    out["predicted_overhead"] = setting.predicted_overhead;
    out["recomputed_stages"] = setting.recomputed;
  }
  out["peak"] = setting.peak;
  out["above_level"] = setting.above;
  out["gradients_bitwise"] = setting.bitwise;
  out["gradient_error"] = setting.gradient_error;
  out["times_ms"] = setting.times;
  return out;
}

ordered_json to_json(const ModelResult& result) {
  ordered_json out{{"config", to_json(result.config)}};
  if (!result.failure.empty()) {
    out["failure"] = result.failure;
    return out;
  }
  out["stages"] = result.stages;
  out["level"] = result.level;
  out["held_by_reprise"] = result.held;
  out["steps_per_sample"] = result.steps;
  out["longest_planning_s"] = result.planning;
  out["settings"] = ordered_json::array();
  for (const Setting& setting : result.settings) out["settings"].push_back(to_json(setting));
  out["requests"] = ordered_json::array();
  for (const Request& request : result.requests) {
    ordered_json row{{"budget", request.budget}};
    if (request.share) row["share"] = *request.share;
    if (request.periodic) row["peak_of_setting"] = *request.periodic;
    row["setting"] = request.setting ? ordered_json(*request.setting) : ordered_json();
    out["requests"].push_back(row);
  }
  if (result.floor) {
    ordered_json holders = ordered_json::array();
    for (const auto& [id, bytes] : result.floor->holders) {
      holders.push_back({{"id", id}, {"bytes", bytes}});
    }
    out["floor"] = {{"budget", result.floor->budget},
                    {"op", result.floor->op},
                    {"stage", result.floor->stage},
                    {"holders", holders}};
  }
  out["pairs"] = ordered_json::array();
  for (const PairedRun& run : result.pairs) {
    out["pairs"].push_back(
        {{"periodic", run.periodic}, {"reprise", run.reprise}, {"ratios", run.ratios}});
  }
  out["executor"] = ordered_json::array();
  for (const ExecutorCost& cost : result.executor) {
    out["executor"].push_back({{"config", to_json(cost.config)},
                               {"plain_median_ms", cost.plain_median},
                               {"plain_min_ms", cost.plain_min},
                               {"reprise_median_ms", cost.reprise_median},
                               {"reprise_min_ms", cost.reprise_min},
                               {"ratios", cost.ratios}});
  }
  return out;
}

}  // namespace

std::string describe(const training::ModelConfig& config) {
  std::string text = fmt::format("{}, {}", config.model, fmt::join(config.input, "x"));
  if (config.width > 0) text += fmt::format(", width {}", config.width);
  if (config.layers > 0) text += fmt::format(", layers {}", config.layers);
  return text;
}

std::string markdown(const StepRunInfo& info, const std::vector<ModelResult>& results) {
  std::string text = fmt::format(
      "# Chain mode: measured step times and peaks\n\n"
      "A program writes this file, so do not edit it.\n"
      "[Benchmarks](../benchmarks.md#how-chain-mode-is-measured) says what is measured, how, and "
      "how to read it.\n"
      "This command writes the file again:\n\n{}\n- {}\n"
      "- {} rounds, {} pairs\n\n",
      as_code_block(info.run.command), measured(info.run), info.options.rounds, info.options.pairs);
  text += overview(results);
  text += executor_table(results);
  for (const ModelResult& result : results) text += model_text(result);
  return text;
}

std::string json(const StepRunInfo& info, const std::vector<ModelResult>& results) {
  ordered_json out{{"format", "reprise.bench.chain_mode"},
                   {"command", info.run.command},
                   {"measured", measured(info.run)},
                   {"rounds", info.options.rounds},
                   {"pairs", info.options.pairs},
                   {"models", ordered_json::array()}};
  for (const ModelResult& result : results) out["models"].push_back(to_json(result));
  return out.dump(1) + "\n";
}

}  // namespace reprise::bench
