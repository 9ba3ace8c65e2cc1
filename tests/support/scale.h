// How much a randomised test does: a quick share by default, ten times that with
// REPRISE_TEST_FULL=1.
#pragma once

#include <cstdlib>
#include <cstring>

namespace reprise::testing {

inline int test_scale(int quick) {
  const char* full = std::getenv("REPRISE_TEST_FULL");
  return full != nullptr && std::strcmp(full, "1") == 0 ? 10 * quick : quick;
}

}  // namespace reprise::testing
