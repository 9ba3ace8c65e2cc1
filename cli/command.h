// This header has the parts that all commands share: how they register, and the exit codes.
#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace reprise::cli {

enum ExitCode : int {
  kDone = 0,
  kBroken = 1,      // an invalid plan (check), or a run that broke its promise or lost a process
  kBadInput = 2,    // usage, input, unwritable output, unknown planner
  kInfeasible = 3,  // stderr names the smallest feasible budget
  kOutOfTime = 4,   // time ran out without a plan
  kInternal = 70,
};

// A Handler does the work of the command that the user asked for, and returns the exit code.
// Expected failures are exceptions of reprise/model/errors.h, which main() turns into messages and
// codes.
using Handler = std::function<int()>;

// Each function adds one command to `app`. Parsing the command's arguments sets `action`.
void add_plan(CLI::App& app, Handler& action);
void add_pipeline(CLI::App& app, Handler& action);
void add_frontier(CLI::App& app, Handler& action);
void add_check(CLI::App& app, Handler& action);
void add_explain(CLI::App& app, Handler& action);
void add_report(CLI::App& app, Handler& action);
void add_planners(CLI::App& app, Handler& action);
void add_doctor(CLI::App& app, Handler& action);

}  // namespace reprise::cli
