// The place where the gradients of a loss arrive at a chain of stages.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <string>

#include "reprise/runtime/stage.h"

namespace reprise::runtime::internal::chain {

// Takes the gradients where the chain would take them, and the level of memory at that moment.
struct LossSink final : torch::autograd::Node {
  c10::Device device;
  Tensors gradients;
  int64_t level = 0, peak = 0;
  int64_t shared = 0;  // bytes of gradients that others hold: the expanded 1 of a sum
  bool reached = false;

  explicit LossSink(c10::Device d) : device(d) {}
  std::string name() const override { return "reprise::LossSink"; }
  torch::autograd::variable_list apply(torch::autograd::variable_list&& inputs) override;
};

}  // namespace reprise::runtime::internal::chain
