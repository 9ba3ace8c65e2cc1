// This is the search over the pieces of several branches, by labels: what is held below, and how
// long it takes. See join.cc.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "plan/common/search_control.h"
#include "plan/join/pieces.h"

namespace reprise::internal::join {

inline constexpr size_t kMostBranches = 6;

struct LossLevel {
  int64_t workspace = 0;
  bool consumes = false;
};

// By branch and boundary: the boundary up to which each branch before it stands, at least, before the
// branch is put together up to there. Weights that branches share ask for this order: what lies
// below is reversed later (SharedWeights).
using Precedence = std::vector<std::vector<std::vector<size_t>>>;
Precedence precedence_of(const Join& join);

struct LabelLimits {
  int64_t memory = 0;        // bytes beyond the fixed ones and the inputs
  int64_t time = INT64_MAX;  // extra time in ns; only plans that take less are wanted
  int64_t grid = 1;          // held bytes are rounded up to multiples of this: fewer labels
  bool any_time = false;     // asks only whether there is a plan: all times count as 0
};

// A Step puts a piece of a branch on top of what lies below it.
struct Step {
  size_t branch = 0;
  Piece piece;
  bool pinned = false;  // at its first boundary
  int64_t memory = 0;   // bytes in which it is reversed, beyond what is held below
};

struct LabelResult {
  bool complete = false;                   // all labels were looked at
  std::optional<std::vector<Step>> steps;  // the best plan within the limits, lowest piece first
  int64_t time = 0;                        // its extra time
  Bytes memory;                            // of the labels
};

LabelResult search_labels(const std::vector<std::unique_ptr<BranchPieces>>& branches,
                          const LossLevel& loss, const Precedence& precedence,
                          const LabelLimits& limits, common::SearchControl& control);

}  // namespace reprise::internal::join
