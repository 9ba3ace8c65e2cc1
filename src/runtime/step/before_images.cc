#include "runtime/step/before_images.h"

#include <algorithm>

namespace reprise::runtime::internal::step {
namespace {

bool lies_at(const at::Tensor& tensor, const at::Tensor& place) {
  return tensor.storage().is_alias_of(place.storage()) &&
         tensor.storage_offset() == place.storage_offset();
}

}  // namespace

bool BeforeImages::moved() const {
  return std::any_of(places_.begin(), places_.end(),
                     [](const auto& kept) { return !lies_at(kept.first, kept.second); });
}

void BeforeImages::keep_flag(const at::Tensor& tensor) {
  flags_.try_emplace(tensor.unsafeGetTensorImpl(), tensor, tensor.requires_grad());
}

std::vector<at::Tensor> BeforeImages::flipped() const {
  std::vector<at::Tensor> all;
  for (const auto& [address, kept] : flags_) {
    const auto& [tensor, flag] = kept;
    if (tensor.is_leaf() && tensor.requires_grad() != flag) all.push_back(tensor);
  }
  return all;
}

void BeforeImages::keep(const at::Tensor& tensor, HostBytes bytes) {
  images_.try_emplace(tensor.storage().unsafeGetStorageImpl(), tensor, std::move(bytes));
}

bool BeforeImages::has(const at::Tensor& tensor) const {
  return images_.contains(tensor.storage().unsafeGetStorageImpl());
}

void BeforeImages::restore() const {
  // The loop goes backwards, because the first place that was kept for a tensor is where it lay
  // before the step.
  for (auto kept = places_.rbegin(); kept != places_.rend(); ++kept) {
    if (!lies_at(kept->first, kept->second)) kept->first.set_data(kept->second);
  }
  for (const auto& [memory, image] : images_) copy_from_host(image.second, image.first.storage());
  for (const at::Tensor& tensor : flipped()) tensor.set_requires_grad(!tensor.requires_grad());
  for (const auto& [leaf, gradient] : gradients_) leaf.mutable_grad() = gradient;
}

}  // namespace reprise::runtime::internal::step
