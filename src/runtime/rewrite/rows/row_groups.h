// Finds perceptrons in a recording: linear layers with element-wise calls between them, whose hidden
// tensors are wider than what goes in and comes out.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/rewrite/alternative.h"
#include "runtime/rewrite/rows/row_call.h"

namespace reprise::runtime::internal::rewrite {

// A RowGroup is a set of calls that run by blocks of rows, forward and backward. The hidden tensors
// that they make for each other, [rows, width], need not exist as a whole.
struct RowGroup {
  int64_t rows = 0;
  std::vector<RowCall> forward = {}, backward = {};  // in order
  // The calls of the forward that the backward makes again. Their first operands are kept.
  std::vector<RowCall> again = {};
  // The calls behind which forward and backward run: by then all that they read is made and not
  // yet written over, and nothing else has read yet what they make.
  int32_t forward_after = -1, backward_after = -1;
  // These values outlive the blocks: something outside reads them, or the step returns them.
  std::vector<int32_t> forward_outputs = {}, backward_outputs = {};

  std::vector<int32_t> calls() const;  // positions, in order
};

// Returns all groups. They are disjoint. A group has a product in the forward that makes something
// hidden, a product that reads the last of it, and a backward.
std::vector<RowGroup> find_row_groups(const Rewriter& rewriter);

}  // namespace reprise::runtime::internal::rewrite
