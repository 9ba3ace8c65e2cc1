// Copies of a storage's bytes in host memory that the allocator does not count.
#pragma once

#include <c10/core/Storage.h>

#include <cstdint>
#include <memory>
#include <new>
#include <utility>
#include <vector>

namespace reprise::runtime::internal::step {

// An Unset is an allocator whose new bytes are not set, because they are written at once.
struct Unset : std::allocator<char> {
  template <class Other>
  struct rebind {
    using other = Unset;
  };
  template <class Element>
  void construct(Element* at) {
    ::new (static_cast<void*>(at)) Element;
  }
  template <class Element, class... Values>
  void construct(Element* at, Values&&... values) {
    ::new (static_cast<void*>(at)) Element(std::forward<Values>(values)...);
  }
};

using HostBytes = std::vector<char, Unset>;

HostBytes copy_to_host(const c10::Storage& storage);
// Copies `count` bytes from `begin` on.
HostBytes copy_to_host(const c10::Storage& storage, int64_t begin, int64_t count);
// Both have the same size.
void copy_from_host(const HostBytes& bytes, const c10::Storage& storage);

}  // namespace reprise::runtime::internal::step
