// Calls of a recording in the form in which blocks of rows run them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/rewrite/tiles/element_call.h"

namespace reprise::runtime::internal::rewrite {

enum class RowKind : uint8_t {
  kElements,  // an element-wise call; each row of the result depends on the same rows of operands
  kProduct,   // rows times a matrix, perhaps plus a bias: rows
  kWeight,    // rows, transposed, times rows: a matrix that all rows add to
  kSum,       // the sum of the rows
};

// A RowCall is a call over `rows` rows. An operand with rows is a matrix [rows, width] that lies
// row after row; element-wise calls take its elements in this order. Other operands are the same for
// all blocks of rows.
struct RowCall {
  int32_t call = -1;
  RowKind kind = RowKind::kElements;
  int64_t rows = 0;
  std::optional<ElementCall> elements = {};  // of kElements
  // kProduct: the rows, the matrix, perhaps the bias. kWeight: both operands as [rows, width].
  // kSum: the rows, as [rows, width].
  std::vector<step::TensorRef> operands = {};
  step::TensorRef result = {};

  bool has_rows() const { return kind == RowKind::kElements || kind == RowKind::kProduct; }
  // Returns the number of elements in a row of the result.
  int64_t width() const;
  // Calls visit(ref, has_rows) for each operand that is a tensor.
  template <class Visit>
  void for_each_operand(Visit&& visit) const {
    if (kind != RowKind::kElements) {
      for (size_t k = 0; k < operands.size(); ++k) {
        visit(operands[k], kind != RowKind::kProduct || k == 0);
      }
      return;
    }
    for (size_t a = 0; a < elements->arguments.size(); ++a) {
      for (const step::TensorRef& ref : elements->arguments[a].tensors) {
        visit(ref, elements->is_whole(a));
      }
    }
  }
};

// Says which calls of a recording are row calls.
class RowCalls {
 public:
  explicit RowCalls(const step::Recording& recording)
      : recording_(recording), element_calls_(recording) {}

  // Returns the number of rows if the call is a product, and 0 otherwise.
  int64_t rows_of_product(int32_t call) const;
  // Returns nothing if the call is of none of the kinds, if its results are not fresh memory, or if
  // it has another number of rows. An element-wise call may write over its operand.
  std::optional<RowCall> at(int32_t call, int64_t rows);

 private:
  bool find_product(const step::Call& call, RowCall& found) const;
  bool find_weight(const step::Call& call, RowCall& found) const;
  bool find_sum(const step::Call& call, RowCall& found) const;

  const step::Recording& recording_;
  ElementCalls element_calls_;
};

// RowBlocks cut rows into blocks of `block` rows. A product over rows is added up in parts of
// `weight` rows, and this number divides `block`.
struct RowBlocks {
  int64_t rows = 0, block = 0, weight = 0;

  bool operator==(const RowBlocks&) const = default;
};

// Calls visit(first, count) for each block. The last one also has the rows that are too few for a
// block of their own.
template <class Visit>
void for_each_block(const RowBlocks& blocks, Visit&& visit) {
  constexpr int64_t kLeastRows = 32;  // products of few rows add up in another order
  for (int64_t first = 0, count = 0; first < blocks.rows; first += count) {
    const int64_t rest = blocks.rows - first;
    count = rest < blocks.block + kLeastRows ? rest : blocks.block;
    visit(first, count);
  }
}
// Returns the number of rows of the largest block.
int64_t largest_block(const RowBlocks& blocks);

// Writes the product of a block of rows and a matrix, plus the bias if it is defined.
void multiply_rows(const at::Tensor& rows, const at::Tensor& matrix, const at::Tensor& bias,
                   at::Tensor result);
// Adds what the block that begins with row `first` adds to the product over rows. The first block
// writes the result.
void add_weight(const at::Tensor& left, const at::Tensor& right, int64_t first, int64_t weight,
                at::Tensor result);

}  // namespace reprise::runtime::internal::rewrite
