// This file has the arguments of aten::convolution.
#pragma once

#include <cstddef>

namespace reprise::runtime::internal::rewrite {

struct Convolution {
  enum Operand : size_t {
    kInput,
    kWeight,
    kBias,
    kStride,
    kPadding,
    kDilation,
    kTransposed,
    kOutputPadding,
    kGroups
  };
};

}  // namespace reprise::runtime::internal::rewrite
