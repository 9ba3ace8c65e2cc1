// These are the ranges of a file that are in use.
#pragma once

#include <cstdint>
#include <map>

namespace reprise::runtime::internal::transfer {

// Gives out ranges of a file from its beginning: the first gap that is large enough, else the end.
// Equal calls in equal order get equal ranges, so that the steps of a plan write the same places.
class FileSpace {
 public:
  // Returns the offset of a range of `bytes` > 0 bytes. O(number of gaps).
  int64_t take(int64_t bytes);
  void give_back(int64_t offset, int64_t bytes);
  int64_t end() const { return end_; }      // of the last range in use
  bool empty() const { return end_ == 0; }  // nothing is in use

 private:
  std::map<int64_t, int64_t> gaps_;  // by offset: bytes; none touches another, or the end
  int64_t end_ = 0;
};

}  // namespace reprise::runtime::internal::transfer
