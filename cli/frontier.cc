// This file has the command `reprise frontier PROBLEM`.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "command.h"
#include "machine_arguments.h"
#include "output.h"
#include "power_arguments.h"
#include "reprise/check/simulate.h"
#include "reprise/model/errors.h"
#include "reprise/plan/energy.h"
#include "reprise/plan/registry.h"
#include "reprise/report/energy.h"
#include "reprise/report/svg.h"
#include "reprise/report/text.h"
#include "search_arguments.h"

namespace reprise::cli {

namespace {

struct FrontierArguments {
  std::string problem;
  std::string output;
  std::string svg;
  int points = 0;  // 0: all
  std::vector<std::string> marks;
  bool json = false;
  bool compare = false;
  MachineArguments machine;
  std::string budget;
  std::string power;
  SearchArguments search;
};

// Draws the curve with its additions. The picture of a chain also shows the points of periodic
// checkpoints, as far as they are found in a tenth of the time, unless there are other curves to
// compare with. The budgets that the user asked for are marked.
std::string picture(const Chain* chain, const Frontier& curve, const Baseline& plain,
                    const std::vector<ComparedCurve>& compared,
                    const FrontierArguments& arguments) {
  PlanOptions simple = search_options(arguments.search);
  simple.planner = "periodic";
  simple.time_limit = Nanos(simple.time_limit.count() / 10);
  std::vector<FrontierPoint> periodic;
  if (chain != nullptr && compared.empty()) periodic = frontier(*chain, simple).points;
  SvgOptions options;
  options.compared = compared;
  for (const std::string& mark : arguments.marks) {
    options.marks.push_back(Budget(mark).resolve(plain.peak));
  }
  return frontier_svg(curve, plain, periodic, options);
}

// Time against energy within one budget.
int run_energy_frontier(const FrontierArguments& arguments) {
  const CommandClock clock;
  PlanOptions options = search_options(arguments.search);
  options.budget = Budget(arguments.budget);
  options.machine = machine_of(arguments.machine);
  require_writable({{"--output", arguments.output}}, {{"PROBLEM", arguments.problem}});
  const Problem problem = load_problem(arguments.problem);
  const Power power = *power_of(arguments.power, arguments.search.quiet);
  clock.leave_rest(options);
  StatusLine status(arguments.search.quiet);
  options.observer = status.observer();
  const size_t most = arguments.points > 0 ? static_cast<size_t>(arguments.points) : 9;
  const std::vector<EnergyPoint> points = std::visit(
      [&](const auto& model) { return energy_curve(model, power, options, most); }, problem.model);
  status.wipe();
  if (points.empty()) {
    complain("no plan was found within this budget; `reprise plan` says which is the smallest");
    return kInfeasible;
  }
  const EnergyUse plain = baseline_energy(problem.graph(), power);
  const std::string json = energy_curve_json(points, plain);
  if (!arguments.output.empty()) write_output(arguments.output, json);
  print(arguments.json ? json : energy_curve_text(points, plain, text_options()));
  return kDone;
}

int run_frontier(const FrontierArguments& arguments) {
  if (!arguments.power.empty()) return run_energy_frontier(arguments);
  const CommandClock clock;
  PlanOptions options = search_options(arguments.search);
  options.machine = machine_of(arguments.machine);
  if (arguments.compare && options.machine.channels.empty()) {
    throw InputError("--compare needs a machine: give --offload or --machine, too");
  }
  if (!options.planner.empty()) find_planner(options.planner);
  require_writable({{"--output", arguments.output}, {"--svg", arguments.svg}},
                   {{"PROBLEM", arguments.problem}, {"--machine", arguments.machine.file}});
  for (const std::string& mark : arguments.marks) Budget{mark};  // report mistakes before the work
  const Problem problem = load_problem(arguments.problem);
  const Chain* chain = problem.chain();
  clock.leave_rest(options);

  StatusLine status(arguments.search.quiet);
  options.observer = status.observer();
  Frontier curve = in_file(arguments.problem, [&] {
    return std::visit([&](const auto& model) { return frontier(model, options); }, problem.model);
  });
  std::vector<ComparedCurve> compared;
  if (arguments.compare) compared = compared_curves(problem, options);
  status.wipe();
  curve.problem = problem.id;
  if (curve.points.empty()) {
    complain(
        fmt::format("out of time: no point of the curve was found in {}.\n"
                    "Give a longer --time-limit or a faster --planner.",
                    format_duration(parse_duration(arguments.search.time_limit))));
    return kOutOfTime;
  }
  const Baseline plain = baseline(problem.graph());
  if (!arguments.svg.empty()) {
    write_output(arguments.svg, picture(chain, curve, plain, compared, arguments));
  }
  if (arguments.points > 0) curve = thinned(curve, static_cast<size_t>(arguments.points));
  if (!arguments.output.empty()) write_output(arguments.output, to_json(curve));
  print(arguments.json ? to_json(curve) : frontier_text(curve, plain, text_options(), compared));
  return kDone;
}

}  // namespace

void add_frontier(CLI::App& app, Handler& action) {
  auto arguments = std::make_shared<FrontierArguments>();
  CLI::App* command =
      app.add_subcommand("frontier", "the best time of every budget: the whole curve");
  command->add_option("PROBLEM", arguments->problem, "a chain, graph, join or profile file")
      ->required();
  command->add_option("--output,-o", arguments->output, "frontier file (JSON)")->type_name("FILE");
  CLI::Option* svg =
      command->add_option("--svg", arguments->svg, "picture of the curve")->type_name("FILE");
  command
      ->add_option(
          "--points", arguments->points,
          "thin the table and the file to so many points; each keeps its exact time (default: all)")
      ->type_name("N")
      ->check(CLI::Range(2, 1'000'000).description(""));
  command->add_option("--mark", arguments->marks, "budget to mark in the picture; may be repeated")
      ->type_name("BUDGET")
      ->needs(svg);
  command->add_flag("--json", arguments->json, "JSON on standard output instead of a table");
  add_machine_options(*command, arguments->machine);
  CLI::Option* compare = command->add_flag(
      "--compare", arguments->compare,
      "with --offload or --machine: also plans that only recompute, and that only move (chains)");
  CLI::Option* power = add_power_option(*command, arguments->power);
  power->excludes(svg)->excludes(compare);
  CLI::Option* budget =
      command
          ->add_option("--budget,-b", arguments->budget,
                       "with --power: the budget within which time and energy are compared")
          ->type_name("BYTES")
          ->needs(power);
  power->needs(budget);
  add_search_options(*command, arguments->search, "60s");
  command->footer(
      "Examples:\n  reprise frontier densenet121.json -o frontier.json --svg frontier.svg --mark "
      "60%\n  reprise frontier densenet121.json --offload host=12GB/s --compare --svg frontier.svg"
      "\n  reprise frontier densenet121.json --budget 60% --power static=20W,dynamic=45W");
  command->callback(
      [arguments, &action] { action = [arguments] { return run_frontier(*arguments); }; });
}

}  // namespace reprise::cli
