// This file has the kernels of a linear layer and the cross-entropy behind it, in blocks of rows
// (linear_cross_entropy.cc): no block's logits, log-soft-max or gradients exist beside those of
// another block.
#pragma once

#include <ATen/core/Reduction.h>
#include <ATen/core/ivalue.h>

#include <vector>

#include "runtime/rewrite/rows/row_call.h"

namespace reprise::runtime::internal::rewrite {

// These values are the same in every run of the kernels.
struct HeadConstants {
  int64_t reduction = at::Reduction::Mean, ignored = 0;
  bool has_bias = false, same_bits = false;  // same_bits: the loss is summed as ATen does
  RowBlocks blocks = {};
  std::vector<RowKind> products = {};  // of the gradient of the logits
};

// Operands of the kernels. Both begin with the first five. The backward goes on with kGradOutput,
// kTotalWeight, and from kOthers on with the other operand of each product.
struct HeadOperand {
  enum : size_t {
    kInput,
    kWeight,
    kBias,
    kTarget,
    kClassWeight,
    kGradOutput,
    kTotalWeight,
    kOthers
  };
};

// Results: the loss, and the total weight of the targets' classes.
void run_head(std::vector<c10::IValue>& stack, const HeadConstants& constants);

// Results: one for each product, and behind them the loss. Without a total weight among the
// operands the kernel is the forward, too; with one, the loss is undefined.
void run_head_backward(std::vector<c10::IValue>& stack, const HeadConstants& constants);

}  // namespace reprise::runtime::internal::rewrite
