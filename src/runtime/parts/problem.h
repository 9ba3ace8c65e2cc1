// The measured parts of all ranks are one problem for the planners of pipelines.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reprise/model/pipeline.h"
#include "reprise/plan/pipeline.h"
#include "runtime/parts/facts.h"

namespace reprise::runtime::internal::parts {

struct ProblemOptions {
  std::string name;
  int64_t micro_batches = 1;
  int64_t link_bytes_per_second = 1;
};

// Returns the bytes of the inputs of all micro-batches.
Bytes input_bytes(const std::vector<PartFacts>& parts, int64_t micro_batches);

// Returns the pipeline of the parts, which are in the order of their numbers. Part q lies on rank q
// modulo the number of ranks. Throws InputError if two neighbouring parts do not fit together.
Pipeline problem_of(const std::vector<PartFacts>& parts, const std::vector<RankFacts>& ranks,
                    const ProblemOptions& options);

// Plans with the cuts that the parts have. `budget` is that of this rank. Throws InputError if only
// some ranks have this share as their budget or if an option cannot be used, and BudgetError if no
// plan fits.
PipelinePlan plan_of(const Pipeline& problem, const std::vector<PartFacts>& parts,
                     const std::vector<RankFacts>& ranks, PipelineOptions options);

}  // namespace reprise::runtime::internal::parts
