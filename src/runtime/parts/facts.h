// These are the facts that the ranks of a pipeline tell each other, and their texts.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "reprise/model/pipeline.h"
#include "reprise/runtime/stage.h"
#include "runtime/chain/pipeline_part.h"

namespace reprise::runtime::internal::parts {

// A PartFacts is what a rank says about one of its parts.
struct PartFacts {
  Pipeline alone;  // the part on one device: its chain, and the weight parts of its stages
  Bytes output_gradient;
  std::vector<std::string> not_split;  // "stage '2.name': the reason"
};

inline constexpr Bytes kShareOf{1'000'000'000'000};

// A RankFacts is what a rank says about itself when it asks for a plan.
struct RankFacts {
  Bytes level;          // live when the step begins
  bool share = false;   // whether its budget is a share
  int64_t budget = -1;  // the bytes, or this share of kShareOf; -1: no limit

  bool operator==(const RankFacts&) const = default;
};

PartFacts facts_of(const chain::PipelinePart& part, int32_t number);
RankFacts facts_of(Bytes level, const Budget& budget);

std::string to_text(const std::vector<PartFacts>& parts);
std::vector<PartFacts> parse_parts(const std::string& text);
std::string to_text(const RankFacts& rank);
RankFacts parse_rank(const std::string& text);

// A Boundary is what comes from the part before.
struct Boundary {
  std::string structure;  // PipelinedStepOptions::output_structure
  Tensors sample = {};    // Numbers are random, but the same at each call.
};

// Returns the shapes and types of the tensors that go to the next part, whether they want gradients,
// and their structure.
std::string boundary_text(const Tensors& outputs, const std::string& structure);
Boundary parse_boundary(const std::string& text);

}  // namespace reprise::runtime::internal::parts
