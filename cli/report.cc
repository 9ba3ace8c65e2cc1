// This file has the command `reprise report PROBLEM PLAN`.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "command.h"
#include "machine_arguments.h"
#include "output.h"
#include "plan_of.h"
#include "report_page.h"
#include "reprise/check/verify.h"
#include "reprise/io/json.h"
#include "reprise/model/errors.h"

namespace reprise::cli {

namespace {

struct ReportArguments {
  std::string problem;
  std::string plan;
  std::string frontier;
  std::string run_log;
  std::string output;
  std::string trace;
  std::string snapshot;
  std::string curve_limit = "3s";
  MachineArguments machine;
  bool quiet = false;
};

ReportInput load(const ReportArguments& arguments) {
  ReportInput input{.problem = load_problem(arguments.problem), .plan = load_plan(arguments.plan)};
  input.machine = machine_for(input.plan, arguments.machine, arguments.plan);
  require_plan_of(input.problem, input.plan, arguments.plan, input.machine);
  if (!arguments.frontier.empty()) {
    input.frontier = load_frontier(arguments.frontier);
    in_file(arguments.frontier, [&] { validate(*input.frontier, input.problem); });
  }
  if (!arguments.run_log.empty()) {
    input.run_log = load_run_log(arguments.run_log);
    in_file(arguments.run_log, [&] { validate(*input.run_log, input.plan); });
  }
  return input;
}

void write_page(const ReportArguments& arguments, ReportInput& input) {
  const std::string page =
      report_page(input, parse_duration(arguments.curve_limit), arguments.quiet);
  if (arguments.output.empty()) {
    print(page);
  } else {
    write_output(arguments.output, page);
  }
}

int run_report(const ReportArguments& arguments) {
  require_writable({{"--output", arguments.output},
                    {"--trace", arguments.trace},
                    {"--snapshot", arguments.snapshot}},
                   {{"PROBLEM", arguments.problem},
                    {"PLAN", arguments.plan},
                    {"--frontier", arguments.frontier},
                    {"--runlog", arguments.run_log}});
  parse_duration(arguments.curve_limit);  // report mistakes before the work
  ReportInput input = load(arguments);
  if (!arguments.trace.empty()) write_output(arguments.trace, chrome_trace(input));
  if (!arguments.snapshot.empty()) write_output(arguments.snapshot, memory_snapshot(input));
  const bool other_files = !arguments.trace.empty() || !arguments.snapshot.empty();
  if (!arguments.output.empty() || !other_files) write_page(arguments, input);
  const size_t faults = verify(input.problem.graph(input.plan), input.plan, input.plan.budget,
                               input.problem.id_for(input.plan.problem), input.machine)
                            .size();
  if (faults > 0 && !arguments.quiet) {
    say(fmt::format("this plan is not valid ({} violation{}); see `reprise check`", faults,
                    faults == 1 ? "" : "s"));
  }
  return kDone;
}

}  // namespace

void add_report(CLI::App& app, Handler& action) {
  auto arguments = std::make_shared<ReportArguments>();
  CLI::App* command =
      app.add_subcommand("report", "one self-contained HTML page: what a plan does and why");
  command->add_option("PROBLEM", arguments->problem, "a chain, graph, join or profile file")
      ->required();
  command->add_option("PLAN", arguments->plan, "a plan file")->required();
  command
      ->add_option("--output,-o", arguments->output,
                   "the page (default: standard output, unless --trace or --snapshot is given)")
      ->type_name("FILE");
  command
      ->add_option("--frontier", arguments->frontier,
                   "curve to show, from `reprise frontier -o` (default: of chains, worked out)")
      ->type_name("FILE");
  command->add_option("--runlog", arguments->run_log, "what a run measured")->type_name("FILE");
  command->add_option("--trace", arguments->trace, "Chrome trace of the step, for ui.perfetto.dev")
      ->type_name("FILE");
  command
      ->add_option("--snapshot", arguments->snapshot,
                   "PyTorch memory snapshot, for pytorch.org/memory_viz")
      ->type_name("FILE");
  add_machine_options(*command, arguments->machine);
  command
      ->add_option("--time-limit", arguments->curve_limit,
                   "for working out the curve (default 3s; 0s: none)")
      ->type_name("TIME");
  command->add_flag("--quiet,-q", arguments->quiet, "no progress and no messages but errors");
  command->footer("Example:\n  reprise report densenet121.json plan.json -o report.html");
  command->callback(
      [arguments, &action] { action = [arguments] { return run_report(*arguments); }; });
}

}  // namespace reprise::cli
