#include "runtime/rewrite/loss/linear_cross_entropy_kernel.h"

#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/_log_softmax_backward_data.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/nll_loss_backward.h>
#include <ATen/ops/nll_loss_forward.h>
#include <ATen/ops/zeros.h>

#include <optional>
#include <tuple>
#include <utility>

#include "runtime/rewrite/loss/picked_loss.h"
#include "runtime/rewrite/rows/column_sum.h"

namespace reprise::runtime::internal::rewrite {

namespace {

std::optional<at::Tensor> defined(const c10::IValue& operand) {
  if (!operand.isTensor() || !operand.toTensor().defined()) return std::nullopt;
  return operand.toTensor();
}

at::Tensor log_softmax_of(const std::vector<c10::IValue>& stack, const HeadConstants& constants,
                          const at::Tensor& rows) {
  const at::Tensor weight = stack[HeadOperand::kWeight].toTensor();
  at::Tensor logits = at::empty({rows.size(0), weight.size(1)}, rows.options());
  multiply_rows(rows, weight,
                constants.has_bias ? stack[HeadOperand::kBias].toTensor() : at::Tensor(), logits);
  // No promise of ATen says that a device may write over what it reads here.
  if (!logits.device().is_cpu()) return at::_log_softmax(logits, 1, false);
  at::_log_softmax_out(logits, logits, 1, false);
  return logits;
}

// A LossSum adds up the loss of all rows and their total weight, from the log-soft-max of one block
// after another.
class LossSum {
 public:
  LossSum(const HeadConstants& constants, const at::Tensor& target,
          const std::optional<at::Tensor>& weight, const at::TensorOptions& options)
      : constants_(constants), target_(target), weight_(weight) {
    if (constants.same_bits) {
      picked_.emplace(target, constants.reduction, constants.ignored, options);
    } else {
      sum_ = at::zeros({}, options);
      total_ = at::zeros({}, options);
    }
  }

  void add(const at::Tensor& log, int64_t first) {
    if (picked_) return picked_->add(log, first);
    const at::Tensor target = target_.narrow(0, first, log.size(0));
    const auto [part, weight] =
        at::nll_loss_forward(log, target, weight_, at::Reduction::Sum, constants_.ignored);
    sum_.add_(part);
    total_.add_(weight);
  }

  // Returns the loss and the total weight.
  std::tuple<at::Tensor, at::Tensor> finish() {
    if (picked_) return picked_->finish();
    if (constants_.reduction == at::Reduction::Mean) sum_.div_(total_);
    return {sum_, total_};
  }

 private:
  const HeadConstants& constants_;
  const at::Tensor target_;
  const std::optional<at::Tensor> weight_;
  std::optional<PickedLoss> picked_;  // with the bits of the whole
  at::Tensor sum_, total_;            // of the blocks so far
};

// Returns the sum of the weights of the classes of all rows.
at::Tensor total_weight(const at::Tensor& target, const std::optional<at::Tensor>& weight,
                        int64_t ignored, at::ScalarType type) {
  const at::Tensor counts = target.ne(ignored);
  if (!weight) return counts.sum(type);
  return weight->index_select(0, target.where(counts, 0)).mul_(counts).sum();
}

// Products are the products with the gradient of the logits, from one block after another.
class Products {
 public:
  Products(const HeadConstants& constants, const std::vector<c10::IValue>& stack, int64_t classes,
           const at::TensorOptions& options)
      : constants_(constants), stack_(stack) {
    for (size_t k = 0; k < constants.products.size(); ++k) {
      const RowKind product = constants.products[k];
      const int64_t rows = product == RowKind::kProduct  ? constants.blocks.rows
                           : product == RowKind::kWeight ? classes
                                                         : 1;
      const int64_t columns =
          product == RowKind::kSum ? classes : stack[HeadOperand::kOthers + k].toTensor().size(1);
      results_.push_back(at::empty({rows, columns}, options));
      sums_.emplace_back();
      if (product != RowKind::kSum) continue;
      sums_[k].emplace(constants.blocks.rows, classes, options);
    }
  }

  void add(const at::Tensor& gradient, int64_t first) {
    const int64_t count = gradient.size(0);
    for (size_t k = 0; k < results_.size(); ++k) {
      if (sums_[k]) {
        sums_[k]->add(gradient);
        continue;
      }
      const at::Tensor other = stack_[HeadOperand::kOthers + k].toTensor();
      if (constants_.products[k] == RowKind::kProduct) {
        multiply_rows(gradient, other, {}, results_[k].narrow(0, first, count));
      } else {
        add_weight(gradient, other.narrow(0, first, count), first, constants_.blocks.weight,
                   results_[k]);
      }
    }
  }

  std::vector<at::Tensor> finish() {
    for (size_t k = 0; k < results_.size(); ++k) {
      if (sums_[k]) sums_[k]->finish(results_[k]);
    }
    return std::move(results_);
  }

 private:
  const HeadConstants& constants_;
  const std::vector<c10::IValue>& stack_;
  std::vector<at::Tensor> results_;
  std::vector<std::optional<ColumnSum>> sums_;
};

}  // namespace

void run_head(std::vector<c10::IValue>& stack, const HeadConstants& constants) {
  const at::Tensor input = stack[HeadOperand::kInput].toTensor();
  LossSum sum(constants, stack[HeadOperand::kTarget].toTensor(),
              defined(stack[HeadOperand::kClassWeight]), input.options());
  for_each_block(constants.blocks, [&](int64_t first, int64_t count) {
    sum.add(log_softmax_of(stack, constants, input.narrow(0, first, count)), first);
  });
  auto [loss, total] = sum.finish();
  stack.clear();
  stack.emplace_back(std::move(loss));
  stack.emplace_back(std::move(total));
}

void run_head_backward(std::vector<c10::IValue>& stack, const HeadConstants& constants) {
  const at::Tensor input = stack[HeadOperand::kInput].toTensor(),
                   target = stack[HeadOperand::kTarget].toTensor();
  const std::optional<at::Tensor> weight = defined(stack[HeadOperand::kClassWeight]);
  const int64_t classes = stack[HeadOperand::kWeight].toTensor().size(1);
  std::optional<LossSum> sum;
  at::Tensor total;
  if (defined(stack[HeadOperand::kTotalWeight])) {
    total = stack[HeadOperand::kTotalWeight].toTensor();
  } else {
    total = total_weight(target, weight, constants.ignored, input.scalar_type());
    sum.emplace(constants, target, weight, input.options());
  }
  Products products(constants, stack, classes, input.options());
  for_each_block(constants.blocks, [&](int64_t first, int64_t count) {
    const at::Tensor log = log_softmax_of(stack, constants, input.narrow(0, first, count));
    if (sum) sum->add(log, first);
    at::Tensor gradient = at::nll_loss_backward(stack[HeadOperand::kGradOutput].toTensor(), log,
                                                target.narrow(0, first, count), weight,
                                                constants.reduction, constants.ignored, total);
    if (gradient.device().is_cpu()) {
      at::_log_softmax_backward_data_out(gradient, gradient, log, 1, input.scalar_type());
    } else {
      gradient = at::_log_softmax_backward_data(gradient, log, 1, input.scalar_type());
    }
    products.add(gradient, first);
  });
  std::vector<at::Tensor> results = products.finish();
  at::Tensor loss = sum ? std::get<0>(sum->finish()) : at::Tensor();
  stack.clear();
  for (at::Tensor& result : results) stack.emplace_back(std::move(result));
  stack.emplace_back(std::move(loss));
}

}  // namespace reprise::runtime::internal::rewrite
