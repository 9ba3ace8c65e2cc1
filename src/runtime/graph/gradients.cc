#include "runtime/graph/gradients.h"

#include <ATen/core/grad_mode.h>

#include <utility>

#include "reprise/model/errors.h"
#include "reprise/runtime/miss.h"
#include "runtime/graph/words.h"

namespace reprise::runtime::internal::graph {

using step::Arrival;
using step::GradientFlag;

namespace {

template <class Leaf>
const at::Tensor& target_of(const Leaf& leaf, const Tensors& inputs) {
  return leaf.input < 0 ? leaf.target : inputs[leaf.input];
}

}  // namespace

void begin_gradients(const Recording& recording, const Tensors& inputs) {
  const auto is_there = [&](const LeafGradient& leaf, Arrival arrival) {
    return leaf.arrival == arrival && target_of(leaf, inputs).grad().defined();
  };
  for (const LeafGradient& leaf : recording.gradients) {
    if (!is_there(leaf, Arrival::kReads)) continue;
    throw StepMiss(
        "a parameter has a gradient already, and the captured step does more with it than to add "
        "one (several backward passes, clipping, functions of yours): it was captured without. Set "
        "gradients to None before the step: optimizer.zero_grad()",
        StepMiss::Kind::kGradients);
  }
  for (const LeafGradient& leaf : recording.gradients) {
    if (is_there(leaf, Arrival::kReplaced)) target_of(leaf, inputs).mutable_grad() = at::Tensor();
  }
}

std::vector<Delivery> deliveries(const RewrittenStep& step, bool averaged, const Replay& replay,
                                 const Tensors& inputs) {
  at::NoGradGuard no_grad;
  const Recording& recording = step.recording;
  std::vector<bool> used_up(recording.gradients.size(), false);
  for (const Update& update : step.updates.each) used_up[update.leaf] = true;
  std::vector<Delivery> all;
  for (size_t l = 0; l < used_up.size(); ++l) {
    const LeafGradient& leaf = recording.gradients[l];
    if (used_up[l]) continue;
    const TensorRef gradient = step.buckets.gradient(recording, l);
    const at::Tensor& now = target_of(leaf, inputs).grad();
    if (gradient.memory == Memory::kExternal && now.defined() &&
        now.storage().is_alias_of(replay.tensor(gradient).storage())) {
      continue;  // The step has worked on it where it is.
    }
    Delivery& next = all.emplace_back();
    next.target = target_of(leaf, inputs);
    next.arrival = leaf.arrival;
    if (gradient.memory == Memory::kNone) continue;
    next.gradient = replay.tensor(gradient);
    if (gradient.memory == Memory::kValue) next.value = gradient.index;
    next.replaces = averaged && step.buckets.has(l);
    if (gradient.memory == Memory::kExternal) next.gradient = next.gradient.clone();
  }
  return all;
}

void deliver(std::vector<Delivery>& gradients) {
  at::NoGradGuard no_grad;
  for (Delivery& next : gradients) {
    at::Tensor& grad = next.target.mutable_grad();
    if (next.replaces && grad.defined()) {
      grad.copy_(next.gradient);
      continue;
    }
    if (grad.defined() && next.arrival == Arrival::kZeroed) grad.zero_();
    if (!next.gradient.defined()) continue;
    if (grad.defined()) {
      grad.add_(next.gradient);
    } else {
      grad = std::move(next.gradient);
    }
  }
}

void set_flags(const Recording& recording, const Tensors& inputs) {
  for (const GradientFlag& flag : recording.flags) {
    const at::Tensor& target = target_of(flag, inputs);
    if (target.requires_grad() != flag.wanted) target.set_requires_grad(flag.wanted);
  }
}

}  // namespace reprise::runtime::internal::graph
