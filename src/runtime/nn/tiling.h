// Cuts an element-wise operation over broadcast operands into tiles.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "reprise/runtime/stage.h"

namespace reprise::runtime::internal::nn {

// A Tile is a block of the elements of a Tiling. In the memory of the outputs it is one range.
struct Tile {
  int64_t number = 0;  // as Tiling counts them; unknown (0) in Order::kLikeKernels
  int64_t begin = 0;   // the first element, in the memory order of the outputs
  int64_t elements = 0;
  std::vector<int64_t> sizes = {};  // the shape that the function sees, outermost dimension first
  std::vector<int64_t> first = {};  // the place of the first element, fastest dimension first
};

enum class Order {
  // Several threads, each with the range of elements that a kernel of ATen would give it. So kernels
  // meet the ends of their loops where they meet them on the whole.
  kLikeKernels,
  kNumbered,  // several threads; the tiles do not depend on the number of threads
  kOneByOne,  // one tile after the other; the kernels in it may use several threads
};

// The operands of one operation, broadcast to one shape, and how they are cut. Dimensions that lie
// behind each other in all operands are one dimension, so dense operands of one layout have one.
class Tiling {
 public:
  // `tile` is the number of elements of a tile, a multiple of 4,096; tiles of whole rows may have up
  // to four times as many.
  Tiling(const Tensors& operands, int64_t tile);

  // Allocates an output of this type. Its layout is the one that ATen gives to a result.
  at::Tensor new_output(at::ScalarType type) const;
  at::IntArrayRef sizes() const { return sizes_; }
  bool flat() const { return dims_.size() == 1; }
  int64_t tiles() const { return blocks_ * outer_; }
  int64_t largest_tile() const { return inner_ * rows_; }
  Tile tile(int64_t number) const;

  // Returns the part of operand `i` in a tile. Where the operand is broadcast, strides are 0.
  at::Tensor operand(size_t i, const Tile& tile) const;
  // Returns the part of an output.
  at::Tensor part(const at::Tensor& output, const Tile& tile) const;
  // Adds a tile of numbers to `sum`, which has the shape and the layout of operand `i`. Along
  // dimensions in which the operand is broadcast, the numbers are summed.
  void add_to_sum(size_t i, const Tile& tile, const at::Tensor& numbers,
                  const at::Tensor& sum) const;

  // Calls `work` with each tile. Other threads have the thread-local state of this one.
  void for_each(Order order, const std::function<void(const Tile&)>& work) const;

 private:
  // Returns a part of a tensor that has these strides in `dims_`. `sizes` are those of the tile, or
  // 1.
  at::Tensor view(const at::Tensor& tensor, const std::vector<int64_t>& strides, const Tile& tile,
                  const std::vector<int64_t>& sizes) const;
  Tile flat_tile(int64_t begin, int64_t end) const;

  Tensors operands_;
  std::vector<int64_t> sizes_, strides_;  // of the outputs, as tensors have them
  std::vector<int64_t> dims_;             // fastest dimension first
  std::vector<int64_t> output_strides_;
  std::vector<std::vector<int64_t>> operand_strides_;  // in elements
  size_t cut_ = 0;     // tiles have `rows_` of this dimension and all of the faster ones
  int64_t inner_ = 1;  // elements of the dimensions that are faster than `cut_`
  int64_t rows_ = 1, blocks_ = 0, outer_ = 1;
};

// Calls `work` with 0, 1, ..., count - 1: on the CPU on several threads, which have the thread-local
// state of this one.
void for_numbers(int64_t count, c10::Device device, const std::function<void(int64_t)>& work);

}  // namespace reprise::runtime::internal::nn
