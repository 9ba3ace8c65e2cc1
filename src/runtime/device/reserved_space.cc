#include "runtime/device/reserved_space.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>

#include "reprise/model/errors.h"

namespace reprise::runtime::internal::device {

ReservedSpace::ReservedSpace(int64_t bytes)
    : bytes_(static_cast<size_t>(std::max<int64_t>(bytes, 1))) {
  address_ = mmap(nullptr, bytes_, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address_ == MAP_FAILED) {
    throw InternalError(fmt::format("no address space of {} bytes could be reserved", bytes_));
  }
}

ReservedSpace::~ReservedSpace() { munmap(address_, bytes_); }

c10::Storage ReservedSpace::storage() const {
  return c10::Storage(c10::Storage::use_byte_size_t(), bytes_, c10::DataPtr(address_, c10::kCPU));
}

}  // namespace reprise::runtime::internal::device
