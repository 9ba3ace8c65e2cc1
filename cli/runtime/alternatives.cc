// reprise alternatives; and the options that switch them.
#include "reprise/runtime/alternatives.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "commands.h"
#include "reprise/model/errors.h"
#include "output.h"
#include "search_arguments.h"

namespace reprise::cli {
namespace {

int run(bool json) {
  if (json) {
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    for (const runtime::AlternativeInfo& info : runtime::alternatives()) {
      rows.push_back({{"name", info.name},
                      {"exactness", to_string(info.exactness)},
                      {"description", info.description}});
    }
    print(rows.dump(2) + "\n");
    return kDone;
  }
  std::string text = fmt::format("{:<30}{:<11}{}\n", "alternative", "exactness", "what it does");
  for (const runtime::AlternativeInfo& info : runtime::alternatives()) {
    text += fmt::format("{:<30}{:<11}{}\n", info.name, to_string(info.exactness), info.description);
  }
  print(text);
  return kDone;
}

}  // namespace

void add_alternatives(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand(
      "alternatives", "list the other ways to run operations that graph mode may choose");
  command->footer("Example:\n  reprise alternatives --json");
  auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "for programs");
  command->callback([&action, json] { action = [json] { return run(*json); }; });
}

void validate_alternatives(const runtime::AlternativeOptions& options, const std::string& mode) {
  validate(options);
  if (mode != "graph" && options != runtime::AlternativeOptions{}) {
    throw InputError(
        "--only, --without and --allow need --mode graph: a chain of stages has no alternatives");
  }
}

void add_alternative_options(CLI::App& command, runtime::AlternativeOptions& options) {
  command
      .add_option("--only", options.only,
                  "graph mode: of the alternatives only these, see `reprise alternatives`")
      ->delimiter(',')
      ->type_name("NAME,...");
  command.add_option("--without", options.without, "graph mode: not these alternatives")
      ->delimiter(',')
      ->type_name("NAME,...");
  add_allow(command, options.allow, "alternatives of graph mode");
}

}  // namespace reprise::cli
