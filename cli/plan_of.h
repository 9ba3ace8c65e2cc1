// This header checks whether a plan and a problem that were given together belong together.
#pragma once

#include <string>

#include "reprise/io/json.h"
#include "reprise/model/machine.h"

namespace reprise::cli {

// Throws InputError if `plan`, from `file`, cannot be followed because it is for another problem.
// The message names both problems.
void require_plan_of(const Problem& problem, const Plan& plan, const std::string& file,
                     const Machine& machine = {});

}  // namespace reprise::cli
