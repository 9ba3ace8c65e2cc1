// Describes a region of element-wise calls to a compiler (reprise/runtime/region_compiler.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/rewrite/tiles/tile_program.h"

namespace reprise::runtime::internal::rewrite {

// A RegionText is a region with what its kernel reads and writes. Equal texts are one kernel.
struct RegionText {
  struct Input {
    step::TensorRef ref = {};
    std::optional<at::ScalarType> number = {};  // a number of the host, given in this type

    bool operator==(const Input&) const = default;
  };

  std::string text;
  std::string operators;  // for people: "mul*4+tanh+add"
  std::vector<Input> inputs;
  std::vector<step::TensorRef> outputs;
  std::vector<ElementCall> calls;  // in order; those that no output needs are left out
  // Whether each element of a result depends on the elements at the same place of those operands
  // alone that have the layout of the result. Then it may be written over such an operand.
  bool in_order = false;
};

RegionText text_of(const TileSource& source, const step::Recording& recording);

// Returns a constant as a description has it; nothing if it cannot have it.
std::optional<std::string> text_of(const c10::IValue& constant, const c10::Argument& formal);

}  // namespace reprise::runtime::internal::rewrite
