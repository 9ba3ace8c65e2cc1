// Parks tensors in host memory that the allocator does not count. They come back exactly as they
// were, with the same strides and the same storage size.
#pragma once

#include <cstdint>
#include <vector>

#include "reprise/runtime/stage.h"

namespace reprise::runtime::internal::state {

class Parked {
 public:
  Parked() = default;
  explicit Parked(const Tensors& tensors);
  // Returns new tensors in new storages of the same sizes. Tensors that shared a storage share one
  // again.
  Tensors restore() const;

 private:
  struct ParkedTensor {
    bool defined = false;
    size_t storage = 0;
    int64_t offset = 0;
    std::vector<int64_t> sizes, strides;
    at::TensorOptions options;
  };
  std::vector<std::vector<char>> storages_;
  std::vector<ParkedTensor> tensors_;
};

}  // namespace reprise::runtime::internal::state
