#include "program.h"

#include <fmt/format.h>
#include <signal.h>

#include <CLI/CLI.hpp>
#include <new>
#include <sstream>

#include "output.h"
#include "reprise/model/errors.h"

namespace reprise::cli {
namespace {

// A misspelt option explains more than the missing option that it causes.
std::string reason(const CLI::App& app, const CLI::ParseError& error, int argc, char** argv) {
  const auto commands = app.get_subcommands();
  if (commands.empty() && argc > 1 && argv[1][0] != '-') {
    return fmt::format("there is no command \"{}\"", argv[1]);
  }
  const auto* missing = dynamic_cast<const CLI::RequiredError*>(&error);
  if (missing == nullptr || commands.empty()) return error.what();
  for (const std::string& left : commands.front()->remaining()) {
    if (left.starts_with("-")) return fmt::format("there is no option {}", left);
  }
  return error.what();
}

int parse_and_run(int argc, char** argv, const ProgramInfo& info) {
  CLI::App app(info.description, "reprise");
  app.set_version_flag("--version", "reprise " REPRISE_VERSION);
  app.require_subcommand(1);
  app.footer(info.footer);
  Handler action;
  for (const auto add : info.commands) add(app, action);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help_or_version) {
    std::ostringstream out, err;
    app.exit(help_or_version, out, err);
    print(out.str());
    return kDone;
  } catch (const CLI::ParseError& error) {
    const auto commands = app.get_subcommands();
    const std::string help =
        commands.empty() ? "reprise --help" : "reprise " + commands.front()->get_name() + " --help";
    complain(fmt::format("{}\nTry `{}`.", reason(app, error, argc, argv), help));
    return kBadInput;
  }
  return action();
}

int internal(const char* what) {
  complain(fmt::format("internal: {}. This is a defect of reprise; please report it.", what));
  return kInternal;
}

}  // namespace

int run_program(int argc, char** argv, const ProgramInfo& info) {
  // A reader that goes away is noticed as a failed write; see print().
  signal(SIGPIPE, SIG_IGN);
  // So is the limit on the size of files (ulimit -f): the write fails, and its temporary file goes.
  signal(SIGXFSZ, SIG_IGN);
  return guarded([&] { return parse_and_run(argc, argv, info); });
}

int guarded(const Handler& work) {
  try {
    return work();
  } catch (const InputError& error) {
    complain(error.what());
    return kBadInput;
  } catch (const BudgetError& error) {
    complain(error.what());
    return kBroken;
  } catch (const std::bad_alloc&) {
    complain("out of memory");
    return kInternal;
  } catch (const std::exception& error) {
    return internal(error.what());
  } catch (...) {
    return internal("an exception of unknown type");
  }
}

}  // namespace reprise::cli
