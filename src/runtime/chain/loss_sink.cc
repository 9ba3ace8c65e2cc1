#include "runtime/chain/loss_sink.h"

#include "reprise/runtime/allocator.h"
#include "runtime/device/device.h"
#include "runtime/device/tensor_bytes.h"

namespace reprise::runtime::internal::chain {

using device::storage_bytes;

namespace {

// The expanded gradients. Their memory is that of a single number (or of none, if the batch is
// empty), which another tensor holds.
Tensors held_elsewhere(const Tensors& gradients) {
  Tensors others;
  for (const at::Tensor& g : gradients) {
    if (!g.defined() || g.storage().use_count() == 1) continue;
    if (g.numel() == 0 || g.nbytes() > g.storage().nbytes()) others.push_back(g);
  }
  return others;
}

}  // namespace

torch::autograd::variable_list LossSink::apply(torch::autograd::variable_list&& inputs) {
  gradients = std::move(inputs);
  shared = storage_bytes(held_elsewhere(gradients));
  const MemoryCount now = memory_count(device);
  level = now.live;
  peak = now.peak;
  reached = true;
  return {};
}

}  // namespace reprise::runtime::internal::chain
