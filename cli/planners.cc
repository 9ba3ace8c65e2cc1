// This file has the command `reprise planners`.
#include <CLI/CLI.hpp>
#include <memory>

#include "command.h"
#include "output.h"
#include "reprise/plan/registry.h"
#include "reprise/report/json.h"
#include "reprise/report/text.h"

namespace reprise::cli {

void add_planners(CLI::App& app, Handler& action) {
  auto json = std::make_shared<bool>(false);
  CLI::App* command = app.add_subcommand("planners", "the planners there are");
  command->add_flag("--json", *json, "as JSON");
  command->footer("Example:\n  reprise planners");
  command->callback([json, &action] {
    action = [json] {
      print(*json ? planners_json(planners()) : planners_text(planners(), text_options()));
      return kDone;
    };
  });
}

}  // namespace reprise::cli
