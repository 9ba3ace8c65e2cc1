// Runs row calls one after the other on a block of rows, then on the next block. A value that one
// call makes for another exists for a block of rows only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/rewrite/rows/row_call.h"
#include "runtime/rewrite/tiles/tile_program.h"
#include "runtime/step/work.h"

namespace reprise::runtime::internal::rewrite {

// A RowProgram is what calls do to each block of rows. Its kernel takes the operands `inputs`, one
// tensor each, and returns the results `outputs`, one tensor each. Element-wise calls that follow
// each other are one step and run tile by tile inside the block.
struct RowProgram {
  enum class From : uint8_t {
    kNothing,  // an undefined tensor
    kInput,    // rows of an operand, or all of it if it is the same for all blocks
    kOutput,   // rows of a result, or all of it if all rows add to it
    kBuffer,   // a buffer of the size of a block
  };
  struct Place {
    From from = From::kNothing;
    size_t index = 0;
    bool has_rows = false;
    int64_t width = 0;  // the elements of a row
    at::ScalarType dtype = at::kFloat;
  };
  struct Step {
    RowKind kind = RowKind::kElements;
    std::vector<Place> operands = {};  // as in RowCall; of kElements: the inputs of `tiles`
    std::vector<Place> results = {};   // one; of kElements: the outputs of `tiles`
    TileProgram tiles = {};
  };
  struct Output {
    int32_t value = -1;
    std::vector<int64_t> sizes = {};
    at::ScalarType dtype = at::kFloat;
  };

  RowBlocks blocks;
  std::vector<step::TensorRef> inputs;
  std::vector<Output> outputs;
  std::vector<int64_t> buffers;  // the bytes of a row of each
  std::vector<Step> steps;
};

// A program is made from these parts.
struct RowSource {
  std::vector<RowCall> calls;    // in an order in which they can run
  std::vector<int32_t> outputs;  // values that the calls make and that outlive the block
};

// Compiles a program. Calls run in another order if more element-wise calls follow each other then.
// Buffers are given to values by a linear scan over the steps.
RowProgram compile(const RowSource& source, const RowBlocks& blocks);

// Returns the work of a program. Works of the same name are equal if their programs do the same.
step::Work work_of(RowProgram program, const std::string& name);

}  // namespace reprise::runtime::internal::rewrite
