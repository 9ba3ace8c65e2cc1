// These are the inner loops of the slot tables, on arrays that do not overlap.
#pragma once

#include <cstddef>
#include <cstdint>

namespace reprise::internal::chain_slots {

// The loops take this many numbers at a time, and go on to the next multiple. So an array must have
// kLanes numbers more than `count` asks for.
inline constexpr size_t kLanes = 8;

// out[k] = min(out[k], a[k] + b[k] + cost). No sum may exceed 32 bits.
void min_sum(int32_t* out, const int32_t* a, const int32_t* b, int32_t cost, size_t count);
// out[k] = min(out[k], a[k] + cost).
void min_shifted(int32_t* out, const int32_t* a, int32_t cost, size_t count);

}  // namespace reprise::internal::chain_slots
