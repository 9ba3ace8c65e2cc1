// `reprise` finds the command and runs it. Everything else is in the file of the command.
#include <fmt/format.h>

#include "program.h"
#include "runtime_program.h"

namespace reprise::cli {
namespace {

// --help also lists the commands that the other program runs.
std::string footer() {
  std::string text = "Commands of reprise-runtime (built with LibTorch):\n";
  for (const RuntimeCommand& command : runtime_commands()) {
    text += fmt::format("  {:<27} {}\n", command.name, command.summary);
  }
  return text +
         "\nExit codes: 0 done, 1 invalid plan or broken promise, 2 bad usage or input,\n"
         "3 infeasible budget, 4 out of time, 70 internal error.\n"
         "`reprise COMMAND --help` shows an example.";
}

int run(int argc, char** argv) {
  if (argc > 1 && is_runtime_command(argv[1])) {
    return guarded([&]() -> int { become_runtime(argv); });
  }
  return run_program(argc, argv,
                     {"Train neural networks inside a byte budget.",
                      footer(),
                      {add_plan, add_pipeline, add_frontier, add_check, add_explain, add_report,
                       add_planners, add_doctor}});
}

}  // namespace
}  // namespace reprise::cli

int main(int argc, char** argv) { return reprise::cli::run(argc, argv); }
