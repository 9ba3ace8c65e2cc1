#include "runtime/chain/loss_sink.h"

#include <algorithm>
#include <iterator>

#include "reprise/runtime/allocator.h"
#include "runtime/device/device.h"
#include "runtime/device/tensor_bytes.h"

namespace reprise::runtime::internal::chain {

using device::storage_bytes;

namespace {

bool is_among(const at::Tensor& tensor, const Tensors& others) {
  return std::any_of(others.begin(), others.end(), [&](const at::Tensor& other) {
    return other.defined() && other.storage().is_alias_of(tensor.storage());
  });
}

// Returns whether the memory of an expanded gradient is that of a single number (or of none, if the
// batch is empty), which another tensor holds.
bool held_elsewhere(const at::Tensor& g) {
  if (g.storage().use_count() == 1) return false;
  return g.numel() == 0 || g.nbytes() > g.storage().nbytes();
}

}  // namespace

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
  for (const Tensors& branch : gradients) {
    Tensors alone;
    for (const at::Tensor& g : branch) {
      if (g.defined() && !held_elsewhere(g) && !is_among(g, shared)) alone.push_back(g);
    }
    own.push_back(storage_bytes(alone));
  }
  const MemoryCount now = memory_count(device);
  level = now.live;
  peak = now.peak;
  reached = true;
  return {};
}

}  // namespace reprise::runtime::internal::chain
