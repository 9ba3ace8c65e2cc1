#include "plan_of.h"

#include <fmt/format.h>

#include <string>

#include "reprise/check/simulate.h"
#include "reprise/model/errors.h"

namespace reprise::cli {

void require_plan_of(const Problem& problem, const Plan& plan, const std::string& file,
                     const Machine& machine) {
  try {
    simulate(problem.graph(plan), plan, machine);
  } catch (const InputError& error) {
    if (same_problem(plan.problem, problem.id_for(plan.problem))) {
      Location at = error.where();
      const std::string message = std::string(error.what()).substr(format_location(at, "").size());
      at.file = file;
      throw InputError(message, at);
    }
    throw InputError(
        fmt::format("this plan is for \"{}\", not for \"{}\"", plan.problem.name, problem.id.name),
        {.file = file, .pointer = "/problem", .line = 0});
  }
}

}  // namespace reprise::cli
