#include "runtime/chain/saved/remade.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/as_strided.h>
#include <torch/csrc/autograd/saved_variable.h>

#include "reprise/model/errors.h"

namespace reprise::runtime::internal::chain {
namespace {

struct RemadeHooks final : torch::autograd::SavedVariableHooks {
  std::shared_ptr<Remade> value;
  std::optional<StorageLayout> geometry;

  explicit RemadeHooks(std::shared_ptr<Remade> v) : value(std::move(v)) {}
  void call_pack_hook(const at::Tensor& tensor) override { geometry.emplace(tensor); }
  at::Tensor call_unpack_hook() override { return geometry->of(value->read()); }
};

}  // namespace

StorageLayout::StorageLayout(const at::Tensor& tensor)
    : sizes(tensor.sizes().vec()),
      strides(tensor.strides().vec()),
      offset(tensor.storage_offset()) {}

bool StorageLayout::same_places(const StorageLayout& other) const {
  if (sizes != other.sizes || offset != other.offset) return false;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] != 1 && strides[d] != other.strides[d]) return false;
  }
  return true;
}

at::Tensor StorageLayout::of(const at::Tensor& base) const {
  const bool is_same =
      base.sizes() == sizes && base.strides() == strides && base.storage_offset() == offset;
  return is_same ? base : at::as_strided(base, sizes, strides, offset);
}

at::Tensor Remade::made_from(at::Tensor operand, bool over) const {
  // Operands have the types that they had below autograd and autocast.
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::impl::ExcludeDispatchKeyGuard below_autocast(c10::autocast_dispatch_keyset);
  at::Tensor made = remake_(operand, over);
  // Nodes read the tensor by places in its storage.
  if (!geometry_->same_places(StorageLayout(made))) {
    throw InternalError("a tensor that was made again lies otherwise in memory than the first one");
  }
  return geometry_->of(made);
}

void Remade::keep(const at::Tensor& tensor) {
  from_ = Unchanged(tensor);
  remake_ = nullptr;
  made_.reset();
}

at::Tensor Remade::make(bool over) const {
  if (is_kept()) return std::get<Unchanged>(from_).get();
  const Remade& operand = *std::get<std::shared_ptr<Remade>>(from_);
  return made_from(operand.make(over), over && !operand.is_kept());
}

std::pair<at::Tensor, bool> Remade::take() {
  if (is_kept()) return {std::get<Unchanged>(from_).get(), false};
  if (made_.defined()) return {made_, false};
  auto [operand, alone] = std::get<std::shared_ptr<Remade>>(from_)->take();
  at::Tensor made = made_from(std::move(operand), alone);
  if (readers_ <= 0) return {std::move(made), true};
  made_ = made;
  return {std::move(made), false};
}

at::Tensor Remade::read() {
  at::Tensor result = take().first;
  if (--readers_ <= 0) made_.reset();
  return result;
}

void replace(torch::autograd::SavedVariable& saved, const std::shared_ptr<Remade>& value) {
  value->add_reader();
  saved.register_hooks(std::make_unique<RemadeHooks>(value));
}

}  // namespace reprise::runtime::internal::chain
