// plan() of a pipeline finds a plan for a training step on several devices within the bytes of each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "reprise/model/chain.h"
#include "reprise/model/observer.h"
#include "reprise/model/pipeline.h"
#include "reprise/model/plan.h"
#include "reprise/model/units.h"

namespace reprise {

struct PipelineOptions {
  // The limit of every device; a device with less memory has that as its limit. Shares are of the
  // largest peak of the plain pipeline.
  Budget budget = {};
  std::string planner{};  // empty: "pipeline"
  // These are the first stages of all parts but the first one. If the list is empty, the planner
  // chooses. Planners that do not search then take parts whose slowest one is as fast as possible.
  std::vector<int64_t> cuts = {};
  int64_t parts_per_device = 2;           // of planners with several parts on a device
  Nanos time_limit{10'000'000'000};       // limit on the search
  int threads = 0;                        // 0: as many as the machine has
  Exactness allow = Exactness::kBitwise;  // the least exact option that may be used
  Observer observer{};                    // progress; may be empty
};

struct PipelineResult {
  Termination termination = Termination::kTimeLimit;
  std::optional<PipelinePlan> plan;  // with kOptimal and kFeasible; always verified
  std::string planner;
  std::string schedule_class;  // the plans that the lower bound speaks of
  std::vector<Bytes> budgets;  // by device
  Nanos lower_bound;
  Baseline baseline;
  // If the answer is kInfeasible, these are the device on which the plan that came closest is furthest
  // over the budget, and the bytes that this plan needs there. Another plan may need less.
  std::string blocking_device;
  std::optional<Bytes> needed;
  SearchCost search;
};

// Returns what the plain pipeline costs: parts whose slowest one is as fast as possible, one behind
// the other on the devices, in the order 1F1B, with nothing computed twice. The peak is the largest
// of a device. Links that are missing take no time.
Baseline baseline(const Pipeline& pipeline);

// Throws InputError for a malformed problem, an unknown planner or one that does not plan pipelines,
// cuts that are not in the chain, a negative budget, more parts than stages, a link that is missing,
// and a planner that splits backwards where no stage has a weight part. An infeasible budget is an
// answer. Throws InternalError if the answer fails verification.
PipelineResult plan(const Pipeline& pipeline, const PipelineOptions& options = {});

// A PipelineProblem is the problem that a planner of pipelines gets. The pipeline is valid, and its
// inadmissible options are removed.
struct PipelineProblem {
  const Pipeline& pipeline;
  const std::vector<Bytes>& budgets;  // by device
  const PipelineOptions& options;
};

// A PipelineAnswer is what a planner of pipelines returns. plan() fills in the claims and verifies
// them.
struct PipelineAnswer {
  Termination termination = Termination::kTimeLimit;  // kFeasible with a plan
  std::vector<PipelinePart> parts;
  std::vector<std::vector<PipelineAction>> orders;  // by device
  Nanos lower_bound;
  std::string blocking_device = {};
  std::optional<Bytes> needed = {};
  Bytes search_memory = {};
  std::string schedule_class = {};  // empty: that of the planner
};

}  // namespace reprise
