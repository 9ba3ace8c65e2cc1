// Measures the stages that one rank of a pipeline runs.
#pragma once

#include <functional>

#include "runtime/chain/measure.h"
#include "runtime/chain/prepare.h"

namespace reprise::runtime::internal::chain {

// Runs the stages once. Buffers and the random state are put back.
Tensors run_once(const PreparedModel& model, Tensors x);

// Throws InputError if two stages share a parameter.
void require_own_parameters(const PreparedModel& model);

// Measures the stages and the halves of their backwards. Without `loss` another one takes its
// place, whose gradients are dense, as those that come from the next part. The chain's loss has the
// costs that it has in a pipeline.
MeasuredChain measure_part(const PreparedModel& model, const Tensors& sample, const Loss& loss,
                           const MeasureOptions& options,
                           const std::function<void()>& forget_error);

}  // namespace reprise::runtime::internal::chain
