#include "plan/chain_slots/kernel.h"

#include <algorithm>

// Baseline x86-64 has no minimum of 32-bit integers. These loops are compiled once more for AVX2,
// and the program chooses between the two when it starts. Sanitizers do not survive that choice,
// which runs before them.
#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define REPRISE_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define REPRISE_CLONES
#endif

namespace reprise::internal::chain_slots {
namespace {

size_t whole_lanes(size_t count) { return (count + kLanes - 1) & ~(kLanes - 1); }

}  // namespace

REPRISE_CLONES void min_sum(int32_t* __restrict out, const int32_t* __restrict a,
                            const int32_t* __restrict b, int32_t cost, size_t count) {
  for (size_t k = 0; k < whole_lanes(count); ++k) out[k] = std::min(out[k], a[k] + b[k] + cost);
}

REPRISE_CLONES void min_shifted(int32_t* __restrict out, const int32_t* __restrict a, int32_t cost,
                                size_t count) {
  for (size_t k = 0; k < whole_lanes(count); ++k) out[k] = std::min(out[k], a[k] + cost);
}

}  // namespace reprise::internal::chain_slots
