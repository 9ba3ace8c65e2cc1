// This is a gradient that a parameter has for a moment.
#pragma once

#include <ATen/core/Tensor.h>

namespace reprise::runtime::internal::graph {

// While a WithGradient lives, the parameter has this gradient. Afterwards it has none.
class WithGradient {
 public:
  WithGradient(const at::Tensor& parameter, const at::Tensor& gradient) : parameter_(parameter) {
    parameter_.mutable_grad() = gradient;
  }
  ~WithGradient() { parameter_.mutable_grad() = at::Tensor(); }
  WithGradient(const WithGradient&) = delete;
  WithGradient& operator=(const WithGradient&) = delete;

 private:
  const at::Tensor& parameter_;
};

}  // namespace reprise::runtime::internal::graph
