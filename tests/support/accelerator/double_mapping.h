// This is memory that is mapped at two addresses, so that one of them can be forbidden.
#pragma once

#include <cstddef>

namespace sim {

// A DoubleMapping is one file in memory, mapped twice. Pages take memory when they are first
// touched.
class DoubleMapping {
 public:
  enum class Front { kForbidden, kOpen };  // what the host may do at the first address

  // A forked child does not inherit a forbidden mapping. Throws c10::Error where the system refuses.
  DoubleMapping(size_t bytes, Front front);
  ~DoubleMapping();
  DoubleMapping(const DoubleMapping&) = delete;
  DoubleMapping& operator=(const DoubleMapping&) = delete;

  size_t bytes() const { return bytes_; }
  char* front() const { return front_; }  // what users of the memory hold
  char* back() const { return back_; }    // always open, for kernels and copies

  bool in_front(const void* address) const { return within(address, front_); }
  bool in_back(const void* address) const { return within(address, back_); }
  char* to_back(const void* front) const {
    return back_ + (static_cast<const char*>(front) - front_);
  }
  char* to_front(const void* back) const {
    return front_ + (static_cast<const char*>(back) - back_);
  }

 private:
  bool within(const void* address, const char* begin) const {
    const char* const at = static_cast<const char*>(address);
    return begin != nullptr && at >= begin && at < begin + bytes_;
  }

  size_t bytes_ = 0;
  char* front_ = nullptr;
  char* back_ = nullptr;
};

}  // namespace sim
