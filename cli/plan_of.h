// This header checks whether a plan and a problem that were given together belong together.
#pragma once

#include <string>

#include "reprise/io/json.h"
#include "reprise/model/machine.h"

namespace reprise::cli {

// Throws InputError if `plan`, from `file`, cannot be followed. The message names the file, and both
// problems if the plan is for another one.
void require_plan_of(const Problem& problem, const Plan& plan, const std::string& file,
                     const Machine& machine = {});

}  // namespace reprise::cli
