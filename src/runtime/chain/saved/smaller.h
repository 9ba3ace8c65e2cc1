// Saves tensors of autograd in as few bytes as their contents need.
#pragma once

#include "runtime/device/compat.h"

namespace torch::autograd {
class SavedVariable;
}

namespace reprise::runtime::internal::chain {

// Saves the places of max pooling's maxima in two or four bytes each, where that is enough. A plane
// has `plane` elements.
void save_small_indices(torch::autograd::SavedVariable& saved, const at::Tensor& indices,
                        int64_t plane);

// Saves dropout's factors, which are zero or one other number, as one bit each. Returns false and
// does nothing if somebody else holds the factors, or if they have other values.
bool save_one_bit_mask(torch::autograd::SavedVariable& saved, at::Tensor factors);

}  // namespace reprise::runtime::internal::chain
