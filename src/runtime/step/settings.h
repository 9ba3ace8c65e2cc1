// These are the settings of the process by which LibTorch chooses kernels, and so the order of
// their sums.
#pragma once

#include <string>
#include <vector>

namespace reprise::runtime::internal::step {

struct Setting {
  const char* name = "";  // in plain words
  std::string value = {};

  bool operator==(const Setting&) const = default;
};

// Returns all settings as they are now, always in the same order.
std::vector<Setting> settings_now();

}  // namespace reprise::runtime::internal::step
