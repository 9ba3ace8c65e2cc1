// These are modelled costs of calls. Online mode decides by them what to evict. Measured times
// would differ from run to run, and so would the evictions.
#pragma once

#include "runtime/online/record.h"

namespace reprise::runtime::internal::online {

// Returns the modelled time of a call in nanoseconds: what any call costs, the bytes that it reads
// and writes, and the arithmetic of matrix products and convolutions.
double modelled_cost(const RecordedCall& call);

}  // namespace reprise::runtime::internal::online
