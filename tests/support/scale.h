// Says how much a randomised test does: a quick share by default, ten times that with
// REPRISE_TEST_FULL=1, and a fifth of it under a sanitizer, which makes everything ten times
// slower.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "reprise/model/units.h"

namespace reprise::testing {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// Says whether the slow tier runs, as make test-full asks for it.
inline bool full_tests() {
  const char* full = std::getenv("REPRISE_TEST_FULL");
  return full != nullptr && std::strcmp(full, "1") == 0;
}

inline int test_scale(int quick) {
  if (full_tests()) return 10 * quick;
  return kSanitized ? std::max(1, quick / 5) : quick;
}

// The limit of searches whose answers a test judges. No search reaches it: each ends by its own count
// of evaluations. So an answer does not depend on how busy the machine is.
inline constexpr Nanos kNoTimeLimit{int64_t{3'600} * 1'000'000'000};

}  // namespace reprise::testing
