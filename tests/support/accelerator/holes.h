// These are the free ranges of one block of memory.
#pragma once

#include <cstddef>
#include <map>
#include <optional>

namespace sim {

// Best fit: a request takes the smallest hole that holds it, the first one of several. Neighbouring
// holes are one. The same requests get the same offsets in every run.
class Holes {
 public:
  explicit Holes(size_t bytes) {
    if (bytes > 0) holes_.emplace(0, bytes);
  }

  // Returns the offset of a range of this size, which is taken; nothing if no hole is large enough.
  std::optional<size_t> take(size_t bytes);
  // The range was taken.
  void give_back(size_t offset, size_t bytes);

  size_t largest() const;

 private:
  std::map<size_t, size_t> holes_;  // offset: bytes
};

}  // namespace sim
