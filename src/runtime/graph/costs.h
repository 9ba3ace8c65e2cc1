// These are the measured costs of works.
#pragma once

#include <cstdint>
#include <vector>

#include "reprise/model/profile.h"
#include "reprise/model/units.h"

namespace reprise::runtime::internal::graph {

struct WorkCost {
  Nanos time;
  Bytes workspace;        // above the values that the work reads and writes
  int64_t error_ppm = 0;  // Variant::error_ppm
};

struct WorkCosts {
  std::vector<WorkCost> by_work;    // by position in Works::all
  std::vector<TimeSpread> spread;   // by kind of work, named after the first work of the kind
  int64_t processor_percent = 100;  // Profile::processor_percent
};

}  // namespace reprise::runtime::internal::graph
