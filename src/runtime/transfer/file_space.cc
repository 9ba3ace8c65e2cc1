#include "runtime/transfer/file_space.h"

#include <iterator>

namespace reprise::runtime::internal::transfer {

int64_t FileSpace::take(int64_t bytes) {
  for (auto gap = gaps_.begin(); gap != gaps_.end(); ++gap) {
    const auto [offset, size] = *gap;
    if (size < bytes) continue;
    gaps_.erase(gap);
    if (size > bytes) gaps_.emplace(offset + bytes, size - bytes);
    return offset;
  }
  const int64_t offset = end_;
  end_ += bytes;
  return offset;
}

void FileSpace::give_back(int64_t offset, int64_t bytes) {
  const auto next = gaps_.lower_bound(offset);
  if (next != gaps_.end() && next->first == offset + bytes) {
    bytes += next->second;
    gaps_.erase(next);
  }
  const auto behind = gaps_.lower_bound(offset);
  if (behind != gaps_.begin()) {
    const auto before = std::prev(behind);
    if (before->first + before->second == offset) {
      offset = before->first;
      bytes += before->second;
      gaps_.erase(before);
    }
  }
  if (offset + bytes == end_) {
    end_ = offset;
  } else {
    gaps_.emplace(offset, bytes);
  }
}

}  // namespace reprise::runtime::internal::transfer
