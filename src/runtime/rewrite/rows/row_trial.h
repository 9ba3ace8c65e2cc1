// Tries whether a call leaves the same bits block of rows by block of rows.
#pragma once

#include <map>
#include <string>

#include "runtime/rewrite/rows/row_call.h"

namespace reprise::runtime::internal::rewrite {

// ATen and its library of matrix products promise no order of sums. So a trial runs the recorded
// call on random operands of its shapes as a whole, and runs the blocks on the same operands. The
// order in which a kernel adds does not depend on the numbers, and another order shows in some of
// so many elements. Operands and blocks are aligned as they are in a step. What was found holds for
// this machine and this number of threads.
class RowTrials {
 public:
  explicit RowTrials(const step::Recording& recording) : recording_(recording) {}

  // Returns whether the blocks leave the bits of the whole. Equal calls are tried once.
  bool passes(const RowCall& call, const RowBlocks& blocks);

 private:
  const step::Recording& recording_;
  std::map<std::string, bool> passed_;  // by kind of call and blocks
};

// Returns blocks in which all of these calls leave the bits of the whole: the trials say so, and ends
// of vectors of element-wise kernels lie where the whole has them. Returns nothing if there are
// none among those that are tried.
std::optional<RowBlocks> find_blocks(const std::vector<RowCall>& calls, int64_t rows,
                                     RowTrials& trials);

}  // namespace reprise::runtime::internal::rewrite
