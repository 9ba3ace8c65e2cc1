// A tensor that autograd would save, made again when the backward asks for it: from what is kept anyway, by
// the kernel that made it first.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/chain/saved/nodes.h"

namespace reprise::runtime::internal::chain {

// Where a tensor's elements lie in its storage.
struct StorageLayout {
  std::vector<int64_t> sizes, strides;
  int64_t offset;

  explicit StorageLayout(const at::Tensor& tensor);
  // The same places for the same elements: strides of dimensions of one element do not matter.
  bool same_places(const StorageLayout& other) const;
  // These elements of the storage of `base`.
  at::Tensor of(const at::Tensor& base) const;
};

class Remade {
 public:
  // What is kept.
  explicit Remade(Unchanged kept) : from_(std::move(kept)) {}
  // Looks like the first one.
  Remade(std::shared_ptr<Remade> from, Remake remake, StorageLayout geometry)
      : from_(std::move(from)), remake_(std::move(remake)), geometry_(std::move(geometry)) {}

  bool is_kept() const { return !remake_; }
  // It is there anyway: no need to make it.
  void keep(const at::Tensor& tensor);
  // The tensor, made for the caller alone; `over`: what is made on the way is written over where that is possible.
  at::Tensor make(bool over) const;

  // One more will ask, once.
  void add_reader() { ++readers_; }
  // To one of them. What was made waits for the others.
  at::Tensor read();

 private:
  at::Tensor made_from(at::Tensor operand, bool over) const;
  // The tensor, and whether nobody else will have it.
  std::pair<at::Tensor, bool> take();

  std::variant<Unchanged, std::shared_ptr<Remade>> from_;
  Remake remake_;
  std::optional<StorageLayout> geometry_;
  int readers_ = 0;
  at::Tensor made_;
};

// From now on the node gets what `value` makes, seen as it has seen its saved tensor, which is given back.
void replace(torch::autograd::SavedVariable& saved, const std::shared_ptr<Remade>& value);

}  // namespace reprise::runtime::internal::chain
