#include "capture/before_images.h"

namespace reprise::runtime {

void BeforeImages::keep(const at::Tensor& tensor, HostBytes bytes) {
  images_.try_emplace(tensor.storage().unsafeGetStorageImpl(), tensor, std::move(bytes));
}

bool BeforeImages::has(const at::Tensor& tensor) const {
  return images_.contains(tensor.storage().unsafeGetStorageImpl());
}

void BeforeImages::restore() const {
  for (const auto& [memory, image] : images_) copy_from_host(image.second, image.first.storage());
  for (const auto& [leaf, gradient] : gradients_) leaf.mutable_grad() = gradient;
}

}  // namespace reprise::runtime
