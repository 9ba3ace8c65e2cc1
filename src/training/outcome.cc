#include "training/outcome.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/nextafter.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/state/value_keeper.h"

namespace reprise::training {

using runtime::Tensors;
using runtime::internal::state::bitwise_equal;
using runtime::internal::state::Parked;

namespace {

bool equal(const Parked& a, const Parked& b) {
  const Tensors x = a.restore(), y = b.restore();
  if (x.size() != y.size()) return false;
  for (size_t i = 0; i < x.size(); ++i) {
    if (!bitwise_equal(x[i], y[i])) return false;
  }
  return true;
}

double difference(const Parked& a, const Parked& b, const Tensors& start) {
  const Tensors x = a.restore(), y = b.restore();
  double largest = 0;
  for (size_t i = 0; i < std::max(x.size(), y.size()); ++i) {
    if (i >= x.size() || i >= y.size() || x[i].defined() != y[i].defined()) {
      return std::numeric_limits<double>::infinity();
    }
    if (bitwise_equal(x[i], y[i])) continue;
    if (!x[i].is_floating_point()) return std::numeric_limits<double>::infinity();
    const at::Tensor change = i < start.size() ? x[i] - start[i] : x[i];
    const double relative = ((x[i] - y[i]).abs().max() / change.abs().max()).item<double>();
    // A NaN or an infinity in only one of the tensors is not rounding.
    largest = std::max(
        largest, std::isfinite(relative) ? relative : std::numeric_limits<double>::infinity());
  }
  return largest;
}

}  // namespace

void put_back(const Tensors& tensors, const Parked& saved) {
  at::NoGradGuard no_grad;
  const Tensors values = saved.restore();
  for (size_t k = 0; k < values.size(); ++k) tensors[k].variable_data().copy_(values[k]);
}

bool equal(const Outcome& a, const Outcome& b) {
  return equal(a.loss, b.loss) && equal(a.gradients, b.gradients) && equal(a.buffers, b.buffers) &&
         a.random == b.random && equal(a.parameters, b.parameters) &&
         equal(a.state.tensors, b.state.tensors) && a.state.steps == b.state.steps;
}

bool equal_forward(const Outcome& a, const Outcome& b) {
  return equal(a.loss, b.loss) && equal(a.buffers, b.buffers) && a.random == b.random;
}

double difference(const Outcome& a, const Outcome& b, const Tensors& start) {
  if (a.random != b.random || a.state.steps != b.state.steps) {
    return std::numeric_limits<double>::infinity();
  }
  return std::max({difference(a.loss, b.loss, {}), difference(a.gradients, b.gradients, {}),
                   difference(a.buffers, b.buffers, {}),
                   difference(a.parameters, b.parameters, start),
                   difference(a.state.tensors, b.state.tensors, {})});
}

void move_by_last_bit(const Tensors& tensors) {
  at::NoGradGuard no_grad;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.is_floating_point()) continue;
    const at::Tensor way = at::arange(tensor.numel(), tensor.options()).remainder_(2).sub_(0.5);
    const at::Tensor towards = way.mul_(std::numeric_limits<float>::max()).view(tensor.sizes());
    tensor.variable_data().copy_(at::nextafter(tensor.detach(), towards));
  }
}

}  // namespace reprise::training
