// Gradients that were there before a step, while the step runs as if there were none.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <vector>

namespace reprise::runtime::internal::step {

// GradientsAside have the gradients of leaf tensors from take() on. Where the function of the step
// looks at the .grad of a leaf before the step has made a gradient for it, the old one is there again:
// show(). So zero_grad() at the begin of a step drops it, as in plain training.
class GradientsAside {
 public:
  // Puts the gradient of a leaf aside; its .grad is undefined then. Another call does nothing.
  void take(const at::Tensor& leaf);
  // Says whether any leaf had a gradient.
  bool any() const;
  // The function looks at the .grad of this leaf. Returns false, and does nothing, if the step has
  // made a gradient that plain training would have added to the old one.
  bool show(const at::Tensor& leaf);
  // Adds to the old gradients what the step has made, as autograd does. They are in .grad again.
  void add();
  // Does this for one leaf, in the middle of a step.
  void add(const at::Tensor& leaf);
  // Says whether an old gradient is aside that the function has not looked at.
  bool has_unseen() const;
  // Says whether the function has seen a gradient of the step with an old one added to it. An old
  // gradient that it has seen before is memory from before the step, which it may write and keep.
  bool is_mixed() const { return added_; }
  // Lets go of old gradients that the function has seen and that are not in .grad any more.
  void forget_dropped();
  // Puts the old gradients into .grad, but for those that are forgotten: there is none then.
  void put_back();
  // Returns the leaves whose .grad the function has looked at before the step made one.
  std::vector<at::Tensor> seen() const;

 private:
  struct Aside {
    at::Tensor leaf, gradient;  // undefined: there was none
    bool seen = false;
  };
  static void add(Aside& aside);

  std::map<const void*, Aside> aside_;  // by leaf
  std::vector<Aside*> shown_;  // those whose gradient the function has seen and may drop
  bool added_ = false;
};

// While a ShowingGradients lives, touch_gradient() on this thread shows what is aside.
class ShowingGradients {
 public:
  explicit ShowingGradients(GradientsAside& aside);
  ~ShowingGradients();
  ShowingGradients(const ShowingGradients&) = delete;
  ShowingGradients& operator=(const ShowingGradients&) = delete;

 private:
  GradientsAside* outer_;
};
// The function looks at the .grad of this leaf.
void touch_gradient(const at::Tensor& leaf);

}  // namespace reprise::runtime::internal::step
