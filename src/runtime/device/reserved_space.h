// This is address space without memory, for tensors that are looked at and never read.
#pragma once

#include <c10/core/Storage.h>

#include <cstddef>
#include <cstdint>

namespace reprise::runtime::internal::device {

// A ReservedSpace is address space without memory. It stands for tensors of which operators ask
// only for the shape. A read of it is allowed and finds zeros. The constructor throws InternalError
// if the system has no such space.
class ReservedSpace {
 public:
  explicit ReservedSpace(int64_t bytes);
  ~ReservedSpace();
  ReservedSpace(const ReservedSpace&) = delete;
  ReservedSpace& operator=(const ReservedSpace&) = delete;

  // Returns a storage on all of it, which must not outlive it.
  c10::Storage storage() const;
  int64_t bytes() const { return static_cast<int64_t>(bytes_); }
  void* address() const { return address_; }

 private:
  void* address_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace reprise::runtime::internal::device
