// Tensors that wait in host memory which the allocator does not count, and come back exactly as they
// were: same strides, same storage size.
#pragma once

#include <cstdint>
#include <vector>

#include "reprise/runtime/stage.h"

namespace reprise::runtime::internal::state {

class Parked {
 public:
  Parked() = default;
  explicit Parked(const Tensors& tensors);
  // New tensors in new storages of the same sizes; tensors that shared a storage share one again.
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
