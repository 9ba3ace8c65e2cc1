// Tensors that autograd saves with more bytes than they say anything with.
#pragma once

#include "runtime/device/compat.h"

namespace torch::autograd {
class SavedVariable;
}

namespace reprise::runtime::internal::chain {

// Places of max pooling's maxima, of planes of `plane` elements: in two or four bytes, where that is enough.
void save_small_indices(torch::autograd::SavedVariable& saved, const at::Tensor& indices,
                        int64_t plane);

// Dropout's factors, zero or one other number, as one bit each. False, and nothing happens, while somebody else
// holds them, and if they are others.
bool save_one_bit_mask(torch::autograd::SavedVariable& saved, at::Tensor factors);

}  // namespace reprise::runtime::internal::chain
