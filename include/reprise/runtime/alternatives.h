// Alternatives are ways to run parts of a step with less memory. The planner chooses among them for
// each op of a captured step, or for each stage of a chain. Every alternative leaves the same bits,
// except those that have to be allowed.
#pragma once

#include <string>
#include <vector>

#include "reprise/model/chain.h"

namespace reprise::runtime {

// An AlternativeInfo is a row of the registry of alternatives.
struct AlternativeInfo {
  std::string name;         // "in-place"
  std::string description;  // one line
  Exactness exactness = Exactness::kBitwise;
  bool in_graph = true;   // serves ops of a captured step
  bool in_chain = false;  // serves stages of a chain: becomes part of an option of each stage

  bool operator==(const AlternativeInfo&) const = default;
};

// Returns all alternatives, in the order in which the runtime looks for them.
std::vector<AlternativeInfo> alternatives();

// Selects the alternatives that a captured step, or the stages of a chain, may use.
struct AlternativeOptions {
  std::vector<std::string> only = {};     // if not empty: the only ones to use
  std::vector<std::string> without = {};  // never used
  // No alternative that is less exact than this is used. kRounding allows sums in another order, so
  // that gradients differ in the last bits. kApproximate allows codecs of what the backward reads,
  // too: results keep their bits, and gradients are approximate.
  Exactness allow = Exactness::kBitwise;

  bool operator==(const AlternativeOptions&) const = default;
};

// Validates options for a captured step. Throws InputError if a name is not that of an alternative,
// if an alternative that is asked for is not allowed, or if all that are asked for are for chains.
void validate(const AlternativeOptions& options);
// Validates options for a chain. Throws InputError as above, or if an alternative that is asked for
// is not for chains.
void validate_for_chain(const AlternativeOptions& options);

}  // namespace reprise::runtime
