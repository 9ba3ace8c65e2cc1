// A tensor that autograd would save, made again when the backward asks for it: from what is kept anyway, by
// the kernel that made it first.
#pragma once

#include <memory>
#include <utility>
#include <variant>

#include "saved/nodes.h"

namespace reprise::runtime {

class Remade {
 public:
  // What is kept.
  explicit Remade(const at::Tensor& kept) : from_(Unchanged(kept)) {}
  Remade(std::shared_ptr<Remade> from, Remake remake)
      : from_(std::move(from)), remake_(std::move(remake)) {}

  bool is_kept() const { return !remake_; }
  // It is there anyway: no need to make it.
  void keep(const at::Tensor& tensor);
  // The tensor, made for the caller alone.
  at::Tensor make() const;

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
  int readers_ = 0;
  at::Tensor made_;
};

// From now on the node gets what `value` makes, seen as it has seen its saved tensor, which is given back.
void replace(torch::autograd::SavedVariable& saved, const std::shared_ptr<Remade>& value);

// `made` with the sizes and strides of `like`, which lies in a storage of the same kind.
at::Tensor seen_as(const at::Tensor& made, const at::Tensor& like);

}  // namespace reprise::runtime
