// How much a randomised test does: a quick share by default, ten times that with
// REPRISE_TEST_FULL=1, a fifth of it under a sanitizer, which makes everything ten times slower.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace reprise::testing {

inline int test_scale(int quick) {
  const char* full = std::getenv("REPRISE_TEST_FULL");
  if (full != nullptr && std::strcmp(full, "1") == 0) return 10 * quick;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return std::max(1, quick / 5);
#else
  return quick;
#endif
}

}  // namespace reprise::testing
