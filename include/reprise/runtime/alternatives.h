// Other ways to run parts of a captured step, with less memory and at the same bits, from which the planner
// chooses for every occurrence.
#pragma once

#include <string>
#include <vector>

#include "reprise/model/chain.h"

namespace reprise::runtime {

// A kind of alternative.
struct AlternativeInfo {
  std::string name;         // "in-place"
  std::string description;  // one line
  Exactness exactness = Exactness::kBitwise;

  bool operator==(const AlternativeInfo&) const = default;
};

// All kinds, in the order in which they are looked for.
std::vector<AlternativeInfo> alternatives();

// Which kinds a captured step may use.
struct AlternativeOptions {
  std::vector<std::string> only = {};     // not empty: no others
  std::vector<std::string> without = {};  // not these

  bool operator==(const AlternativeOptions&) const = default;
};

// Throws InputError for a name that is no kind of alternative.
void validate(const AlternativeOptions& options);

}  // namespace reprise::runtime
