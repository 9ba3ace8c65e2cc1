// Runs element-wise calls one after the other on a tile of their elements, then on the next tile.
// A value that one call makes for another stays in the cache, and exists as a tile only.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/rewrite/tiles/element_call.h"
#include "runtime/step/work.h"

namespace reprise::runtime::internal::rewrite {

// A TileProgram is what a group of calls does to each tile. Its kernel takes the operands
// `inputs`, one tensor each, and returns the results `outputs`, one tensor each.
struct TileProgram {
  enum class From : uint8_t {
    kConstant,  // `constant`
    kInput,     // a tile of an operand, or all of it if it is a number
    kOutput,    // a tile of a result
    kScratch,   // a buffer of the size of a tile
    kOnes,      // a buffer of the size of a tile that is full of ones
  };
  struct Operand {
    From from = From::kConstant;
    size_t index = 0;
    c10::IValue constant = {};
    at::ScalarType dtype = at::kFloat;
    std::vector<int64_t> strides = {};  // from unit to unit, then of the inner dimensions
    bool is_number = false;             // a tensor of one element, the same for all tiles
  };
  struct Step {
    c10::OperatorHandle op;
    bool result_first = false;
    std::vector<Operand> arguments;
    Operand result;
    std::vector<int64_t> inner;
    int64_t unit = 1;
  };
  struct Input {
    step::TensorRef ref = {};
    std::optional<at::ScalarType> number = {};  // becomes a number for calls of this type

    bool operator==(const Input&) const = default;
  };
  struct Output {
    at::ScalarType dtype = at::kFloat;
    int64_t over = -1;  // the input that it is written over; -1: fresh memory
  };

  int64_t elements = 0;
  int64_t tile = 0;  // elements; a multiple of all units and of kTileAlignment
  std::vector<Input> inputs;
  std::vector<Output> outputs;
  std::vector<int64_t> scratch;  // the bytes of an element of each buffer
  std::vector<Step> steps;
  at::ScalarType ones = at::kFloat;  // the type of the buffer of ones
  bool has_ones = false;
};

// A program is made from these parts.
struct TileSource {
  std::vector<ElementCall> calls;  // in order
  std::vector<int32_t> outputs;    // values that the calls make and that outlive the tile
  int32_t ones = -1;               // a value in whose place the calls read ones; -1: none
};

// Compiles a program. Values that no output needs are left out. Scratch buffers are given to
// values by a linear scan over the calls.
TileProgram compile(const TileSource& source);

// Lets the output be written over the operand `input` of the program, and returns true. Returns
// false if some call would read the operand after the output is written there, or look at it in
// another order.
bool write_over(TileProgram& program, size_t output, size_t input);

// Returns the largest multiple of `unit` and kTileAlignment that suits a group of this many
// elements; 0 if there is none.
int64_t tile_of(int64_t elements, int64_t unit);

// Returns a text that is equal for programs that do the same.
std::string signature_of(const TileProgram& program);
// The operators of the program, for people: "mul*4+tanh+add".
std::string operators_of(const TileProgram& program);

// Memory of an operand or a result. The tensor begins with the element `origin`.
struct TileMemory {
  at::Tensor tensor;
  int64_t origin = 0;
};

// Runs the program on elements begin .. end - 1, on several threads where that pays. Both are
// multiples of kTileAlignment, or the end of all elements. On all elements, threads begin where
// ATen's do. On a part, they begin at tiles of the part.
void run_tiles(const TileProgram& program, std::vector<TileMemory> inputs,
               const std::vector<TileMemory>& outputs, int64_t begin, int64_t end);

// Returns the kernel of the program. With several threads, each thread runs the tiles of the
// elements that ATen would give it, from the first element on. So the ends of tiles, where vectors
// end, lie where they lie in plain training.
step::Kernel kernel_of(TileProgram program);

}  // namespace reprise::runtime::internal::rewrite
