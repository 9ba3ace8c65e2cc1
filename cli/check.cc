// This file has the command `reprise check PROBLEM PLAN`.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <utility>

#include "command.h"
#include "machine_arguments.h"
#include "output.h"
#include "pipeline.h"
#include "reprise/check/simulate.h"
#include "reprise/check/verify.h"
#include "reprise/io/json.h"
#include "reprise/report/json.h"
#include "reprise/report/text.h"

namespace reprise::cli {

namespace {

struct CheckArguments {
  std::string problem;
  std::string plan;
  std::string budget;
  MachineArguments machine;
  bool json = false;
  bool quiet = false;
};

int run_check(const CheckArguments& arguments) {
  const Budget asked = arguments.budget.empty() ? Budget() : Budget(arguments.budget);
  std::string text = read_file(arguments.problem);
  if (parse_format(text, arguments.problem) == "reprise.pipeline") {
    if (is_given(arguments.machine)) {
      throw InputError("a pipeline file has its devices and links: leave --machine and --offload out");
    }
    return check_pipeline(text, arguments.problem, arguments.plan, arguments.budget, arguments.json,
                          arguments.quiet);
  }
  // The text is freed as soon as the problem has been read.
  const Problem problem = parse_problem(std::exchange(text, {}), arguments.problem);
  const Plan plan = load_plan(arguments.plan);
  const Machine machine = machine_for(plan, arguments.machine, arguments.plan);
  const Graph graph = problem.graph(plan);
  const Bytes budget =
      arguments.budget.empty() ? plan.budget : asked.resolve(baseline(problem.graph()).peak);
  const std::vector<Violation> violations =
      verify(graph, plan, budget, problem.id_for(plan.problem), machine);
  if (arguments.json) {
    print(violations_json(violations, plan, budget));
  } else if (!violations.empty()) {
    print(violations_text(violations, text_options()));
  } else {
    print(fmt::format("valid: {} actions, peak {} within {}, time {}\n", plan.actions.size(),
                      format_bytes_exact(plan.peak), format_bytes_exact(budget),
                      format_duration(plan.time)));
  }
  if (violations.empty()) return kDone;
  if (!arguments.quiet) {
    say(fmt::format("{} is not a valid plan for {}", arguments.plan, arguments.problem));
  }
  return kBroken;
}

}  // namespace

void add_check(CLI::App& app, Handler& action) {
  auto arguments = std::make_shared<CheckArguments>();
  CLI::App* command = app.add_subcommand("check", "verify a plan from anywhere; list all faults");
  command
      ->add_option("PROBLEM", arguments->problem, "a chain, graph, join, profile or pipeline file")
      ->required();
  command->add_option("PLAN", arguments->plan, "a plan file")->required();
  command
      ->add_option("--budget,-b", arguments->budget,
                   "judge it by this budget instead of the one that it names")
      ->type_name("BYTES");
  add_machine_options(*command, arguments->machine);
  command->add_flag("--json", arguments->json, "the verdict as JSON");
  command->add_flag("--quiet,-q", arguments->quiet, "no messages but errors");
  command->footer(
      "Exits 1 if the plan is invalid, is for another problem, or makes a false claim.\n\n"
      "Example:\n  reprise check densenet121.json plan.json --budget \"700 MiB\"");
  command->callback(
      [arguments, &action] { action = [arguments] { return run_check(*arguments); }; });
}

}  // namespace reprise::cli
