// improve() is the local search of this room: it changes single choices, builds the exact flow of
// each change, and keeps what is not much slower. So its judge is the exact plan.
#pragma once

#include "plan/place/anneal.h"
#include "plan/place/levels/judge.h"

namespace reprise::internal::levels {

// Searches from a candidate that fits. Never returns a slower one. Without WalkLimits::again every
// stage is kept.
Candidate improve(Judge& judge, Candidate start, const place::WalkLimits& limits);

}  // namespace reprise::internal::levels
