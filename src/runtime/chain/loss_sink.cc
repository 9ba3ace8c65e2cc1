#include "runtime/chain/loss_sink.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <algorithm>
#include <iterator>

#include "reprise/model/errors.h"
#include "reprise/runtime/allocator.h"
#include "runtime/device/device.h"
#include "runtime/device/tensor_bytes.h"

namespace reprise::runtime::internal::chain {

using device::storage_bytes;

namespace {

// Returns whether the memory of a gradient is that of a single number (or of none, if the batch is
// empty), which somebody else holds: autograd holds the 1 from which the backward pass starts. A
// loss that is the output itself hands on that 1, and a sum expands it.
bool held_by_others(const at::Tensor& g) {
  if (g.numel() == 1) return g.use_count() > 1 || g.storage().use_count() > 1;
  if (g.storage().use_count() == 1) return false;
  return g.numel() == 0 || g.nbytes() > g.storage().nbytes();
}

at::Tensor run_loss(const Loss& run, Tensors x) {
  at::Tensor loss = run(x);
  if (!loss.defined() || loss.numel() != 1) {
    throw InputError("the loss must return a tensor of one element");
  }
  if (!loss.requires_grad()) {
    throw InputError(
        "the loss does not depend on the model's output by operations that have gradients: is "
        "it detached, or does no parameter want a gradient?");
  }
  return loss;
}

}  // namespace

bool is_among(const at::Tensor& tensor, const Tensors& others) {
  return tensor.defined() &&
         std::any_of(others.begin(), others.end(), [&](const at::Tensor& other) {
           return other.defined() && other.storage().is_alias_of(tensor.storage());
         });
}

Tensors together(const std::vector<Tensors>& branches) {
  Tensors all;
  for (const Tensors& own : branches) all.insert(all.end(), own.begin(), own.end());
  return all;
}

std::vector<Tensors> apart(Tensors tensors, const std::vector<size_t>& counts) {
  std::vector<Tensors> branches;
  auto next = tensors.begin();
  for (const size_t count : counts) {
    const auto end = next + static_cast<std::ptrdiff_t>(count);
    branches.emplace_back(std::make_move_iterator(next), std::make_move_iterator(end));
    next = end;
  }
  return branches;
}

Tensors shared_between(const std::vector<Tensors>& branches) {
  Tensors shared;
  for (size_t b = 0; b < branches.size(); ++b) {
    for (const at::Tensor& gradient : branches[b]) {
      bool elsewhere = false;
      for (size_t c = 0; c < branches.size() && gradient.defined(); ++c) {
        elsewhere = elsewhere || (c != b && is_among(gradient, branches[c]));
      }
      if (elsewhere) shared.push_back(gradient);
    }
  }
  return shared;
}

torch::autograd::variable_list LossSink::apply(torch::autograd::variable_list&& inputs) {
  gradients = apart(tail ? tail(std::move(inputs)) : std::move(inputs), counts);
  const Tensors shared = shared_between(gradients);
  own.clear();
  held.clear();
  for (const Tensors& branch : gradients) {
    Tensors alone;
    std::vector<bool>& flags = held.emplace_back();
    for (const at::Tensor& g : branch) {
      flags.push_back(g.defined() && (held_by_others(g) || is_among(g, shared)));
      if (g.defined() && !flags.back()) alone.push_back(g);
    }
    own.push_back(storage_bytes(alone));
  }
  const MemoryCount now = memory_count(device);
  level = now.live;
  peak = now.peak;
  reached = true;
  return {};
}

void run_to_sink(const PreparedModel& model, Tensors x, const Loss& loss, bool output_held,
                 GradientBook& book, const device::SharedNode<LossSink>& sink) {
  Tensors held;
  if (model.tail) {
    auto [outputs, kept] = run_keep(*model.tail, x, model.parameters);
    x = std::move(outputs);
    if (output_held) held = x;
    sink.node->tail = [&model, &book,
                       under_way = std::make_shared<Kept>(std::move(kept))](Tensors given) {
      return run_backward(*model.tail, std::move(*under_way), std::move(given), model.parameters,
                          book)
          .inputs;
    };
  }
  const std::vector<bool> needs_grad = model.output_needs_grad();
  for (size_t e = 0; e < x.size(); ++e) {
    if (needs_grad[e]) {
      torch::autograd::set_history(x[e], sink.pointer);
    } else {
      sink.node->add_input_metadata(x[e]);
    }
  }
  at::AutoGradMode with_grad(true);
  at::Tensor value = run_loss(loss, std::move(x));
  value.backward();
}

}  // namespace reprise::runtime::internal::chain
