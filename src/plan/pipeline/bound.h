// These are lower bounds on the time of a step.
#pragma once

#include "plan/pipeline/layout.h"
#include "reprise/model/pipeline.h"
#include "reprise/model/units.h"

namespace reprise::internal::pipeline {

// Returns a time that no plan with these parts takes less than, in any order and with any memory. A
// device cannot begin before the first activation has come to its first part, then has its work of
// all micro-batches, and the last gradient still has to go the way back. The weight parts of stages
// may follow that. A link carries all messages of a part, and one micro-batch goes the whole way.
Nanos bound_of(const Pipeline& pipeline, const Layout& layout, const StageTimes& times);

// Returns the time of a message between two devices: 0 if they are one, or if there is no link.
Nanos message_between(const Pipeline& pipeline, int32_t from, int32_t to, Bytes bytes);

// Returns a time that no plan at all takes less than: the work of all micro-batches, spread over the
// devices as if it could be divided.
Nanos bound_of_all(const Pipeline& pipeline);

}  // namespace reprise::internal::pipeline
