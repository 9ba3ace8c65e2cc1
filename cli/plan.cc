// This file has the command `reprise plan PROBLEM --budget B`.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>

#include "command.h"
#include "machine_arguments.h"
#include "output.h"
#include "power_arguments.h"
#include "report_page.h"
#include "reprise/model/errors.h"
#include "reprise/plan/energy.h"
#include "reprise/plan/registry.h"
#include "reprise/report/energy.h"
#include "reprise/report/json.h"
#include "reprise/report/text.h"
#include "search_arguments.h"

namespace reprise::cli {

namespace {

struct PlanArguments {
  std::string problem;
  std::string budget;
  std::string output;
  std::string report;
  bool json = false;
  std::string objective = "time";
  std::string power;
  MachineArguments machine;
  SearchArguments search;
};

struct Found {
  PlanResult result;
  std::optional<EnergyReport> energy;  // with a plan, if the power is known
};

Found search(const Problem& problem, const PlanOptions& options, const std::optional<Power>& power,
             bool for_energy) {
  Found found;
  if (for_energy) {
    const EnergyPlan best = std::visit(
        [&](const auto& model) { return plan_for_energy(model, *power, options); }, problem.model);
    found.result = best.result;
    if (found.result.plan) found.energy = energy_report(best);
    return found;
  }
  found.result = std::visit([&](const auto& model) { return plan(model, options); }, problem.model);
  if (power && found.result.plan) {
    const Graph graph = problem.graph(*found.result.plan);
    found.energy =
        EnergyReport{.use = energy_of(graph, found.result.plan->actions, *power, options.machine),
                     .plain = baseline_energy(graph, *power)};
  }
  return found;
}

// Exit 3: the smallest feasible budget stands in the message as a plain decimal number.
int report_infeasible(const PlanResult& result) {
  std::string_view other = "try another planner";
  if (result.planner == "join") {
    other = "plan it as a graph (--planner graph)";
  } else if (result.proof == Proof::kScheduleClass) {
    other = "plan a graph of operations (reprise profile --mode graph)";
  }
  const std::string larger = result.smallest_budget ? fmt::format("Ask for --budget {} or more",
                                                                  result.smallest_budget->count())
                                                    : "Ask for a larger budget";
  complain(fmt::format("{}\n{}, make the batch smaller, or {}.", explain_no_plan(result), larger,
                       other));
  return kInfeasible;
}

int report_no_time(const PlanResult& result) {
  complain(explain_no_plan(result) +
           "\nGive a longer --time-limit, a larger --budget, or a faster --planner.");
  return kOutOfTime;
}

void report_plan(const PlanArguments& arguments, const Found& found) {
  const PlanResult& result = found.result;
  const EnergyReport* energy = found.energy ? &*found.energy : nullptr;
  const std::string json = to_json(*result.plan);
  if (arguments.output.empty()) {
    print(json);
  } else {
    write_output(arguments.output, json);
    if (arguments.json) {
      print(result_json(result, energy));
    } else if (!arguments.search.quiet) {
      print(plan_text(result, text_options()));
      if (energy != nullptr) print("\n" + energy_text(*energy, text_options()));
    }
  }
  if (arguments.search.quiet) return;
  const Baseline& plain = result.baseline;
  const auto percent = [](int64_t part, int64_t whole) {
    return whole == 0 ? 100.0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole);
  };
  say(fmt::format("{}: peak {} ({:.1f} % of plain training), time {} ({:+.1f} %)",
                  to_string(result.termination), format_bytes(result.plan->peak),
                  percent(result.plan->peak.count(), plain.peak.count()),
                  format_duration(result.plan->time),
                  percent(result.plan->time.count(), plain.time.count()) - 100));
  if (energy == nullptr) return;
  say(fmt::format("energy {} ({:+.1f} %)", format_energy(energy->use.total()),
                  percent(energy->use.total().count(), energy->plain.total().count()) - 100));
}

int run_plan(const PlanArguments& arguments) {
  const CommandClock clock;
  PlanOptions options = search_options(arguments.search);
  options.budget = Budget(arguments.budget);
  options.machine = machine_of(arguments.machine);
  const bool for_energy = arguments.objective == "energy";
  if (for_energy && arguments.power.empty()) {
    throw InputError(
        "--objective energy needs what the device draws, like --power "
        "static=20W,dynamic=45W");
  }
  if (!options.planner.empty()) find_planner(options.planner);
  require_writable({{"--output", arguments.output}, {"--report", arguments.report}},
                   {{"PROBLEM", arguments.problem}, {"--machine", arguments.machine.file}});
  const Problem problem = load_problem(arguments.problem);
  const std::optional<Power> power = power_of(arguments.power, arguments.search.quiet);
  clock.leave_rest(options);

  StatusLine status(arguments.search.quiet);
  options.observer = status.observer();
  Found found = in_file(arguments.problem,
                        [&] { return search(problem, options, power, for_energy); });
  PlanResult& result = found.result;
  status.wipe();
  // The plan is bound to the file that was read, and not to the file that would be written for it.
  if (result.plan) result.plan->problem = problem.id;

  if (result.plan) {
    if (!arguments.report.empty()) {
      ReportInput page{.problem = problem, .plan = *result.plan, .machine = options.machine};
      write_output(arguments.report, report_page(page, kCurveLimit, arguments.search.quiet));
    }
    report_plan(arguments, found);
    return kDone;
  }
  if (arguments.json) print(result_json(result));
  return result.termination == Termination::kInfeasible ? report_infeasible(result)
                                                        : report_no_time(result);
}

}  // namespace

void add_plan(CLI::App& app, Handler& action) {
  auto arguments = std::make_shared<PlanArguments>();
  CLI::App* command = app.add_subcommand("plan", "find the fastest plan within a byte budget");
  command->add_option("PROBLEM", arguments->problem, "a chain, graph, join or profile file")
      ->required();
  command
      ->add_option(
          "--budget,-b", arguments->budget,
          "device bytes: \"700 MiB\", \"1.5GB\", \"123456\", or \"60%\" of plain training's peak")
      ->type_name("BYTES")
      ->required();
  command->add_option("--output,-o", arguments->output, "plan file (default: standard output)")
      ->type_name("FILE");
  command
      ->add_option("--report", arguments->report, "page to look at, as `reprise report` writes it")
      ->type_name("FILE");
  command->add_flag("--json", arguments->json, "the result on standard output as JSON");
  command
      ->add_option("--objective", arguments->objective,
                   "what the plan has the least of: time (default), or energy")
      ->type_name("NAME")
      ->check(CLI::IsMember({"time", "energy"}).description(""));
  add_power_option(*command, arguments->power);
  add_machine_options(*command, arguments->machine);
  add_search_options(*command, arguments->search, "10s");
  command->footer(
      "Without -o the plan itself goes to standard output.\n\n"
      "Examples:\n  reprise plan densenet121.json --budget 60% -o plan.json\n"
      "  reprise plan densenet121.json --budget 40% --offload host=12GB/s -o plan.json");
  command->callback(
      [arguments, &action] { action = [arguments] { return run_plan(*arguments); }; });
}

}  // namespace reprise::cli
