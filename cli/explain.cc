// This file has the command `reprise explain PROBLEM PLAN`.
#include "reprise/check/explain.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>

#include "command.h"
#include "machine_arguments.h"
#include "output.h"
#include "plan_of.h"
#include "power_arguments.h"
#include "reprise/check/verify.h"
#include "reprise/io/json.h"
#include "reprise/report/energy.h"
#include "reprise/report/json.h"
#include "reprise/report/text.h"

namespace reprise::cli {

namespace {

struct ExplainArguments {
  std::string problem;
  std::string plan;
  MachineArguments machine;
  std::string power;
  size_t rows = 12;
  bool json = false;
  bool quiet = false;
};

int run_explain(const ExplainArguments& arguments) {
  const Problem problem = load_problem(arguments.problem);
  const Plan plan = load_plan(arguments.plan);
  const Graph graph = problem.graph(plan);
  const Machine machine = machine_for(plan, arguments.machine, arguments.plan);
  require_plan_of(problem, plan, arguments.plan, machine);
  const Explanation explanation = explain(graph, plan, machine);
  TextOptions options = text_options();
  options.rows = arguments.rows;
  std::optional<EnergyReport> energy;
  if (const std::optional<Power> power = power_of(arguments.power, arguments.quiet)) {
    energy = EnergyReport{.use = energy_of(graph, plan.actions, *power, machine),
                          .plain = baseline_energy(graph, *power)};
  }
  if (arguments.json) {
    print(explanation_json(explanation, energy ? &*energy : nullptr));
  } else {
    print(explanation_text(explanation, options));
    if (energy) print("\n" + energy_text(*energy, options));
  }
  const size_t faults =
      verify(graph, plan, plan.budget, problem.id_for(plan.problem), machine).size();
  if (faults > 0 && !arguments.quiet) {
    say(fmt::format("this plan is not valid ({} violation{}); see `reprise check`", faults,
                    faults == 1 ? "" : "s"));
  }
  return kDone;
}

}  // namespace

void add_explain(CLI::App& app, Handler& action) {
  auto arguments = std::make_shared<ExplainArguments>();
  CLI::App* command = app.add_subcommand(
      "explain", "who holds the bytes at the peak, what is recomputed, what that costs");
  command->add_option("PROBLEM", arguments->problem, "a chain, graph, join or profile file")
      ->required();
  command->add_option("PLAN", arguments->plan, "a plan file")->required();
  command->add_option("--rows", arguments->rows, "most rows of a table (default 12)")
      ->type_name("N")
      ->check(CLI::Range(1, 1'000'000).description(""));
  add_machine_options(*command, arguments->machine);
  add_power_option(*command, arguments->power);
  command->add_flag("--json", arguments->json, "everything, as JSON");
  command->add_flag("--quiet,-q", arguments->quiet, "no messages but errors");
  command->footer("Example:\n  reprise explain densenet121.json plan.json");
  command->callback(
      [arguments, &action] { action = [arguments] { return run_explain(*arguments); }; });
}

}  // namespace reprise::cli
