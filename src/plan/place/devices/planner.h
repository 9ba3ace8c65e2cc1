// The planner `devices` plans graphs on a machine with several devices.
#pragma once

#include "reprise/plan/planner.h"

namespace reprise::internal::devices {

Answer devices(const GraphProblem& problem);  // devices.cc

}  // namespace reprise::internal::devices
