// This file has the differences between the LibTorch versions 2.11 to 2.14 in one place. The
// runtime compiles against 2.14 without a further entry.
#pragma once

#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/version.h>

#include <memory>
#include <type_traits>
#include <utility>

namespace reprise::runtime::internal::device {

// A NodePtr owns an autograd node: std::shared_ptr up to 2.12, c10::intrusive_ptr since then.
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

// Since 2.13 a storage may have a function that runs when somebody takes its pointer to write. The
// function is taken away when it has run.
using TouchFunction = void (*)(c10::StorageImpl*);

template <class Storage>
concept Touchable = requires(Storage& storage, TouchFunction function) {
  storage.set_materializer(function);
};
inline constexpr bool kStoragesTellTouches = Touchable<c10::StorageImpl>;

template <class Storage>
bool has_touch_function([[maybe_unused]] const Storage& storage) {
  if constexpr (Touchable<Storage>) return storage.has_materializer();
  return false;
}

// The storage has no function yet.
template <class Storage>
void set_touch_function([[maybe_unused]] Storage& storage,
                        [[maybe_unused]] TouchFunction function) {
  if constexpr (Touchable<Storage>) storage.set_materializer(function);
}

template <class Storage>
void clear_touch_function([[maybe_unused]] Storage& storage) {
  if constexpr (Touchable<Storage>) storage.clear_materializer();
}

// A storage whose memory is away answers with an error who asks for its address. The functions below
// put it back into use. 2.11 has no function for that, so its flag is cleared by name: an explicit
// instantiation may name a private member.
#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 12
template <bool c10::StorageImpl::*kMember>
struct RefusalFlag {
  friend bool& refuses_address(c10::StorageImpl& storage) { return storage.*kMember; }
};
template struct RefusalFlag<&c10::StorageImpl::throw_on_immutable_data_ptr_>;
bool& refuses_address(c10::StorageImpl& storage);

// The caller gives the storage its memory next, which renews what follows from the flag.
inline void give_address_again(c10::StorageImpl& storage) { refuses_address(storage) = false; }
#else
inline void give_address_again(c10::StorageImpl& storage) {
  storage.clear_data_ptr_access_error_msg_();
}
#endif

}  // namespace reprise::runtime::internal::device
