#include "runtime/device/heap_block.h"

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

#include "runtime/device/tensor_bytes.h"
#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace reprise::runtime::internal::device {
namespace {

// Stands right before the data: what malloc() returned.
struct Whole {
  void* block;
};

}  // namespace

void* take_heap_block(int64_t bytes) {
  constexpr auto alignment = static_cast<size_t>(kBlockAlignment);
  const auto size = static_cast<size_t>(bytes);
  void* const block = std::malloc(sizeof(Whole) + alignment + size);
  if (block == nullptr) return nullptr;
  void* data = static_cast<std::byte*>(block) + sizeof(Whole);
  size_t room = alignment + size;
  std::align(alignment, size, data, room);
  ::new (static_cast<std::byte*>(data) - sizeof(Whole)) Whole{block};
  return data;
}

void give_back_heap_block(void* data) {
  const std::byte* const place = static_cast<std::byte*>(data) - sizeof(Whole);
  std::free(std::launder(reinterpret_cast<const Whole*>(place))->block);
}

void give_back_idle_pages() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

}  // namespace reprise::runtime::internal::device
