// This is a tensor that autograd would save, and that is made again when the backward asks for it.
// The kernel that made it first makes it again, from tensors that are kept anyway.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/chain/saved/nodes.h"

namespace reprise::runtime::internal::chain {

// A StorageLayout is the places of a tensor's elements in its storage.
struct StorageLayout {
  std::vector<int64_t> sizes, strides;
  int64_t offset;

  explicit StorageLayout(const at::Tensor& tensor);
  // Returns whether the same elements have the same places. Strides of dimensions of one element do
  // not matter.
  bool same_places(const StorageLayout& other) const;
  // Returns the tensor with these elements of the storage of `base`.
  at::Tensor of(const at::Tensor& base) const;
};

class Remade {
 public:
  // A tensor that is kept.
  explicit Remade(Unchanged kept) : from_(std::move(kept)) {}
  // A tensor that `remake` makes from `from`. It gets the layout `geometry`, that of the first one.
  Remade(std::shared_ptr<Remade> from, Remake remake, StorageLayout geometry)
      : from_(std::move(from)), remake_(std::move(remake)), geometry_(std::move(geometry)) {}

  bool is_kept() const { return !remake_; }
  // Keeps the tensor, because it is there anyway. It need not be made again.
  void keep(const at::Tensor& tensor);
  // Makes the tensor for the caller alone. If `over`, intermediate tensors are overwritten where
  // that is possible.
  at::Tensor make(bool over) const;

  // Announces one more reader, which will call read() once.
  void add_reader() { ++readers_; }
  // Returns the tensor to one of the readers. It is held for the other readers.
  at::Tensor read();

 private:
  at::Tensor made_from(at::Tensor operand, bool over) const;
  // The tensor, and whether nobody else will get it.
  std::pair<at::Tensor, bool> take();

  std::variant<Unchanged, std::shared_ptr<Remade>> from_;
  Remake remake_;
  std::optional<StorageLayout> geometry_;
  int readers_ = 0;
  at::Tensor made_;
};

// Makes the node get the tensor of `value`, in the layout of its saved tensor. The saved tensor is
// freed.
void replace(torch::autograd::SavedVariable& saved, const std::shared_ptr<Remade>& value);

}  // namespace reprise::runtime::internal::chain
