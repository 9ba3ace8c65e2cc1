// These are the limits that steps in flight set on the CPU allocator.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <set>

namespace reprise::runtime::internal::device {

// Keeps the limits of all steps in flight, of all models, and the limit that was there before them.
// A budget covers all live bytes, so the smallest limit holds.
class Limits {
 public:
  void add(int64_t bytes);
  void remove(int64_t bytes);

 private:
  void apply() const;

  std::mutex mutex_;
  std::multiset<int64_t> active_;
  std::optional<int64_t> before_;
};

Limits& limits();

}  // namespace reprise::runtime::internal::device
