// The differences between the LibTorch versions 2.11 to 2.14, in one place. The runtime compiles
// against 2.14 without a further entry.
#pragma once

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <type_traits>
#include <utility>

namespace reprise::runtime::internal::device {

// An owning pointer to an autograd node: std::shared_ptr up to 2.12, c10::intrusive_ptr since then.
using NodePtr = decltype(torch::autograd::Edge::function);

using WeakNodePtr =
    std::conditional_t<std::is_same_v<NodePtr, std::shared_ptr<torch::autograd::Node>>,
                       std::weak_ptr<torch::autograd::Node>,
                       c10::weak_intrusive_ptr<torch::autograd::Node>>;

template <class T>
struct SharedNode {
  NodePtr pointer;    // owns the node
  T* node = nullptr;  // the same object
};

template <class T, class... Args>
SharedNode<T> make_node(Args&&... args) {
  if constexpr (std::is_same_v<NodePtr, std::shared_ptr<torch::autograd::Node>>) {
    auto pointer = std::make_shared<T>(std::forward<Args>(args)...);
    return {pointer, pointer.get()};
  } else {
    auto pointer = c10::make_intrusive<T>(std::forward<Args>(args)...);
    T* node = pointer.get();
    return {std::move(pointer), node};
  }
}

}  // namespace reprise::runtime::internal::device
