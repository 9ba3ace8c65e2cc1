// Finds which operations of a captured step the ranks of a process group can share out, with what
// they cost together with their communication.
#pragma once

#include <memory>

#include "reprise/runtime/capture.h"
#include "runtime/distributed/ranks.h"
#include "runtime/graph/step_program.h"

namespace reprise::runtime::internal::graph {

// Throws InputError for options that CaptureOptions::share_work does not go together with.
void require_shared_work(const CaptureOptions& options);

// Lets the ranks agree on the step, and walks through it on these inputs, on all ranks at the same
// time. Each call that the ranks can share out (shared_parts.h) is run so, too. If the results have
// the bits of the whole on all ranks, the call gets a variant with the largest time of all ranks;
// with AlternativeOptions::allow of at least kRounding, results that are close are enough. Of
// several ways the fastest one stays, for each exactness.
//
// Parameters and buffers get the bits of rank 0. The random state is left as it was. Throws
// InputError on all ranks if they have captured different steps, or have different inputs or random
// states.
void add_shared_work(const std::shared_ptr<distributed::Ranks>& ranks, StepProgram& program,
                     const Tensors& inputs, const CaptureOptions& options);

}  // namespace reprise::runtime::internal::graph
