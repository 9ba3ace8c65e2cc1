// Other ways to run parts of a step, with less memory, from which the planner chooses for every occurrence: for each
// operation of a captured step, or for each stage of a chain. All but those that have to be allowed leave the same
// bits.
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
  bool in_graph = true;   // for operations of a captured step
  bool in_chain = false;  // for stages: part of an option of each stage that it is for

  bool operator==(const AlternativeInfo&) const = default;
};

// All kinds, in the order in which they are looked for.
std::vector<AlternativeInfo> alternatives();

// Which kinds a captured step, or the stages of a chain, may use.
struct AlternativeOptions {
  std::vector<std::string> only = {};     // not empty: no others
  std::vector<std::string> without = {};  // not these
  // The least exact kinds that are looked for. kRounding: sums in another order, so that gradients differ in the last
  // bits.
  Exactness allow = Exactness::kBitwise;

  bool operator==(const AlternativeOptions&) const = default;
};

// For a captured step: throws InputError for a name that is no kind of alternative, one that is asked for and not
// allowed, and if all that are asked for are for chains.
void validate(const AlternativeOptions& options);
// For a chain: if any that is asked for is not for chains.
void validate_for_chain(const AlternativeOptions& options);

}  // namespace reprise::runtime
