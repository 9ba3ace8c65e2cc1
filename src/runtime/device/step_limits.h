// The limits of the CPU allocator that steps in flight put on it.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <set>

namespace reprise::runtime::internal::device {

// The limits of all steps in flight, of all models, and the one that was there before them: a budget
// is of all live bytes, so the smallest holds.
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
