#include "runtime/rewrite/loss/picked_loss.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/nll_loss_forward.h>
#include <ATen/ops/zeros_like.h>

namespace reprise::runtime::internal::rewrite {

PickedLoss::PickedLoss(const at::Tensor& target, int64_t reduction, int64_t ignored,
                       const at::TensorOptions& options)
    : target_(target),
      picked_(at::empty({target.size(0), 1}, options)),
      reduction_(reduction),
      ignored_(ignored) {}

void PickedLoss::add(const at::Tensor& log, int64_t first) {
  const at::Tensor target = target_.narrow(0, first, log.size(0));
  const at::Tensor column = target.masked_fill(target.eq(ignored_), 0).unsqueeze(1);
  at::Tensor picked = picked_.narrow(0, first, log.size(0));
  at::gather_out(picked, log, 1, column);
}

std::tuple<at::Tensor, at::Tensor> PickedLoss::finish() const {
  constexpr int64_t kNoClass = -100;
  const at::Tensor column =
      at::zeros_like(target_).masked_fill_(target_.eq(ignored_), kNoClass);
  return at::nll_loss_forward(picked_, column, {}, reduction_, kNoClass);
}

}  // namespace reprise::runtime::internal::rewrite
