#include "runtime/step/gradients_aside.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

namespace reprise::runtime::internal::step {

namespace {
thread_local GradientsAside* shown_here = nullptr;
}

ShowingGradients::ShowingGradients(GradientsAside& aside)
    : outer_(std::exchange(shown_here, &aside)) {}
ShowingGradients::~ShowingGradients() { shown_here = outer_; }

void touch_gradient(const at::Tensor& leaf) {
  if (shown_here != nullptr && !shown_here->show(leaf)) shown_here->add(leaf);
}

void GradientsAside::take(const at::Tensor& leaf) {
  const auto [entry, fresh] = aside_.try_emplace(leaf.unsafeGetTensorImpl());
  if (!fresh) return;
  entry->second = {leaf, leaf.grad()};
  leaf.mutable_grad() = at::Tensor();
}

bool GradientsAside::any() const {
  return std::any_of(aside_.begin(), aside_.end(),
                     [](const auto& one) { return one.second.gradient.defined(); });
}

bool GradientsAside::show(const at::Tensor& leaf) {
  forget_dropped();
  Aside& aside = aside_.try_emplace(leaf.unsafeGetTensorImpl(), Aside{leaf, {}}).first->second;
  if (aside.seen) return true;
  if (leaf.grad().defined()) return !aside.gradient.defined();
  aside.seen = true;
  if (aside.gradient.defined()) shown_.push_back(&aside);
  leaf.mutable_grad() = aside.gradient;
  return true;
}

void GradientsAside::add() {
  for (auto& [key, aside] : aside_) add(aside);
}

void GradientsAside::add(const at::Tensor& leaf) {
  added_ = true;
  add(aside_.at(leaf.unsafeGetTensorImpl()));
}

void GradientsAside::add(Aside& aside) {
  if (aside.seen || !aside.gradient.defined()) return;
  const at::NoGradGuard no_grad;
  aside.seen = true;
  if (aside.leaf.grad().defined()) aside.gradient.add_(aside.leaf.grad());
  aside.leaf.mutable_grad() = aside.gradient;
}

bool GradientsAside::has_unseen() const {
  return std::any_of(aside_.begin(), aside_.end(), [](const auto& one) {
    return !one.second.seen && one.second.gradient.defined();
  });
}

void GradientsAside::forget_dropped() {
  std::erase_if(shown_, [](Aside* aside) {
    if (aside->leaf.grad().is_same(aside->gradient)) return false;
    aside->gradient = at::Tensor();
    return true;
  });
}

void GradientsAside::put_back() {
  for (auto& [key, aside] : aside_) aside.leaf.mutable_grad() = aside.gradient;
}

std::vector<at::Tensor> GradientsAside::seen() const {
  std::vector<at::Tensor> all;
  for (const auto& [key, aside] : aside_) {
    if (aside.seen) all.push_back(aside.leaf);
  }
  return all;
}

}  // namespace reprise::runtime::internal::step
