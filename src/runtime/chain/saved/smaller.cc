#include "runtime/chain/saved/smaller.h"

#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>

#include "runtime/state/bits.h"

namespace reprise::runtime::internal::chain {

using state::bytes_of_bits;
using state::pack_bits;
using state::StandIns;
using state::unpack_bits;

namespace {

using torch::autograd::SavedVariable;
using torch::autograd::SavedVariableHooks;

struct SmallIndices final : SavedVariableHooks {
  at::Tensor narrow;

  explicit SmallIndices(at::Tensor tensor) : narrow(std::move(tensor)) {}
  void call_pack_hook(const at::Tensor&) override {}
  at::Tensor call_unpack_hook() override { return narrow.to(at::kLong); }
};

// Factors that fill their memory, in any order of dimensions.
struct OneBitMask final : SavedVariableHooks {
  std::vector<int64_t> sizes, strides;
  at::TensorOptions options;
  StandIns values;
  at::Tensor bits;

  void call_pack_hook(const at::Tensor&) override {}
  at::Tensor call_unpack_hook() override {
    at::Tensor factors = at::empty_strided(sizes, strides, options);
    unpack_bits(bits.const_data_ptr<uint8_t>(), values, flat(factors));
    return factors;
  }

  static at::Tensor flat(const at::Tensor& tensor) {
    return at::as_strided(tensor, {tensor.numel()}, {1}, tensor.storage_offset());
  }
};

// Returns zero and the first element that differs from it, or nothing if the masks do not
// support the type.
std::optional<StandIns> two_values(const at::Tensor& elements) {
  if (!at::isFloatingType(elements.scalar_type()) || elements.element_size() > 8)
    return std::nullopt;
  const auto size = static_cast<size_t>(elements.element_size());
  const auto* bytes = static_cast<const std::byte*>(elements.const_data_ptr());
  StandIns values{};
  for (int64_t i = 0; i < elements.numel(); ++i) {
    const std::byte* element = bytes + static_cast<size_t>(i) * size;
    if (std::memcmp(element, values.data(), size) == 0) continue;
    std::memcpy(values.data() + size, element, size);
    break;
  }
  return values;
}

// Returns whether the bits stand for exactly these elements. Compares some elements at a time.
bool stand_for(const at::Tensor& bits, const StandIns& values, const at::Tensor& elements) {
  constexpr int64_t kBlock = 1 << 14;
  const at::Tensor block = at::empty({std::min(kBlock, elements.numel())}, elements.options());
  for (int64_t first = 0; first < elements.numel(); first += kBlock) {
    const int64_t count = std::min(kBlock, elements.numel() - first);
    const at::Tensor made = block.narrow(0, 0, count), given = elements.narrow(0, first, count);
    unpack_bits(bits.const_data_ptr<uint8_t>() + first / 8, values, made);
    if (std::memcmp(made.const_data_ptr(), given.const_data_ptr(), made.nbytes()) != 0)
      return false;
  }
  return true;
}

}  // namespace

void save_small_indices(SavedVariable& saved, const at::Tensor& indices, int64_t plane) {
  if (indices.scalar_type() != at::kLong || plane - 1 > std::numeric_limits<int32_t>::max()) return;
  const bool two_bytes = plane - 1 <= std::numeric_limits<int16_t>::max();
  saved.register_hooks(
      std::make_unique<SmallIndices>(indices.to(two_bytes ? at::kShort : at::kInt)));
}

bool save_one_bit_mask(SavedVariable& saved, at::Tensor factors) {
  // Only the node and this function may hold the factors.
  if (factors.use_count() > 2 || factors.storage().use_count() > 1) return false;
  if (!factors.device().is_cpu() || !factors.is_non_overlapping_and_dense()) return false;
  const at::Tensor elements = OneBitMask::flat(factors);
  const auto values = two_values(elements);
  if (!values) return false;
  auto mask = std::make_unique<OneBitMask>();
  mask->sizes = factors.sizes().vec();
  mask->strides = factors.strides().vec();
  mask->options = factors.options();
  mask->values = *values;
  mask->bits = at::empty({bytes_of_bits(elements.numel())}, factors.options().dtype(at::kByte));
  pack_bits(elements, mask->values, mask->bits.mutable_data_ptr<uint8_t>());
  if (!stand_for(mask->bits, mask->values, elements)) return false;
  saved.register_hooks(std::move(mask));
  return true;
}

}  // namespace reprise::runtime::internal::chain
