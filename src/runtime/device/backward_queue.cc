#include "runtime/device/backward_queue.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/engine.h>

#include <string>
#include <utility>

#include "runtime/device/compat.h"

namespace reprise::runtime::internal::device {
namespace {

// An EmptyPass is a backward pass of one node that does nothing.
struct EmptyPass final : torch::autograd::Node {
  explicit EmptyPass(const at::Tensor& trigger) { add_input_metadata(trigger); }
  std::string name() const override { return "reprise::EmptyPass"; }
  torch::autograd::variable_list apply(torch::autograd::variable_list&&) override { return {}; }
};

}  // namespace

void drain_backward_queue() {
  const at::Tensor trigger = at::empty({0});
  torch::autograd::Edge root(make_node<EmptyPass>(trigger).pointer, 0);
  torch::autograd::Engine::get_default_engine().execute({std::move(root)}, {trigger}, false, false,
                                                        true);
}

}  // namespace reprise::runtime::internal::device
