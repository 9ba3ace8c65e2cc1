// This file has `reprise alternatives`, and the options that switch alternatives on and off.
#include "reprise/runtime/alternatives.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "commands.h"
#include "output.h"
#include "reprise/model/errors.h"
#include "search_arguments.h"

namespace reprise::cli {
namespace {

std::vector<std::string> modes_of(const runtime::AlternativeInfo& info) {
  std::vector<std::string> modes;
  if (info.in_graph) modes.emplace_back("graph");
  if (info.in_chain) modes.emplace_back("chain");
  return modes;
}

int run_alternatives(bool json) {
  if (json) {
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    for (const runtime::AlternativeInfo& info : runtime::alternatives()) {
      rows.push_back({{"name", info.name},
                      {"exactness", to_string(info.exactness)},
                      {"modes", modes_of(info)},
                      {"description", info.description}});
    }
    print(rows.dump(2) + "\n");
    return kDone;
  }
  std::string text =
      fmt::format("{:<30}{:<11}{:<14}{}\n", "alternative", "exactness", "mode", "what it does");
  for (const runtime::AlternativeInfo& info : runtime::alternatives()) {
    text += fmt::format("{:<30}{:<11}{:<14}{}\n", info.name, to_string(info.exactness),
                        fmt::to_string(fmt::join(modes_of(info), ", ")), info.description);
  }
  print(text);
  return kDone;
}

}  // namespace

void add_alternatives(CLI::App& app, Handler& action) {
  CLI::App* command = app.add_subcommand(
      "alternatives", "list the other ways to run operations and stages that a plan may choose");
  command->footer("Example:\n  reprise alternatives --json");
  auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "for programs");
  command->callback([&action, json] { action = [json] { return run_alternatives(*json); }; });
}

void validate_alternatives(const runtime::AlternativeOptions& options, const std::string& mode) {
  if (mode == "graph") return validate(options);
  validate_for_chain(options);
  if (options.allow != Exactness::kBitwise) {
    throw InputError("--allow needs --mode graph: the alternatives of a chain leave the same bits");
  }
}

void add_alternative_options(CLI::App& command, runtime::AlternativeOptions& options) {
  command
      .add_option("--only", options.only,
                  "of the alternatives only these, see `reprise alternatives`")
      ->delimiter(',')
      ->type_name("NAME,...");
  command.add_option("--without", options.without, "not these alternatives")
      ->delimiter(',')
      ->type_name("NAME,...");
  add_allow(command, options.allow, "alternatives of graph mode");
}

}  // namespace reprise::cli
