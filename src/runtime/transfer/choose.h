// Chooses for "auto" as OffloadOptions::to: the memory that values may move to, and whether they
// should.
#pragma once

#include <c10/core/Device.h>

#include <string>
#include <vector>

#include "reprise/model/graph.h"
#include "reprise/model/machine.h"
#include "reprise/model/profile.h"
#include "reprise/plan/plan.h"
#include "reprise/runtime/offload.h"

namespace reprise::runtime::internal::transfer {

// Says whether the options leave the choice to the runtime: "auto" or "auto:DIRECTORY".
bool is_auto(const OffloadOptions& options);

struct AutoMemory {
  OffloadOptions options;  // with the memory by its name; `to` is empty if there is none
  std::string why;         // why there is none
};

// Returns the memory that "auto" may take: the host's on a device, and on the CPU a disk in the
// directory, or in the temporary directory. A file system in memory is none, because the bytes of a
// file there are memory that no budget counts. Opens nothing. Throws InputError for a directory that
// was named and is not there.
AutoMemory memory_for_auto(const OffloadOptions& asked, c10::Device device);

// A Comparison has the answers that are compared, and what they are for.
struct Comparison {
  const Graph& graph;         // of both plans
  const PlanResult& without;  // a second memory
  const PlanResult& with;     // a second memory
  const Machine& machine;     // of `with`
  std::string objection = {};  // why the plan with a second memory is not taken
};

struct Verdict {
  bool moves = false;
  std::string why;

  bool operator==(const Verdict&) const = default;
};

// Says whether moving values pays. It does if only so there is a plan. Otherwise the plan with the
// second memory must be faster by more than the measurement can tell, also if the channels carry half
// of what was measured:
//
// - What the two plans run alike takes as long in both. The rest (runs that only one of them has, and
//   the time in which the plan waits for copies) is unsure by the spread of the measured times: the
//   median over all ops of (largest - smallest) / (2 sqrt(repeats)) over the median time of an op.
// - No gain of less than one per cent of the step counts.
Verdict weigh(const Comparison& both, const std::vector<TimeSpread>& spread, const std::string& to);

// The same before a second memory is opened. Returns a verdict with an empty text if moving may pay.
// `bound` is a time that no plan without a budget beats.
Verdict weigh_before(const PlanResult& without, Nanos bound);

}  // namespace reprise::runtime::internal::transfer
