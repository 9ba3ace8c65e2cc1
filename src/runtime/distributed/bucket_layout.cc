#include "runtime/distributed/bucket_layout.h"

#include <algorithm>
#include <utility>

namespace reprise::runtime::internal::distributed {
namespace {

// An Open is the bucket that is being filled for a type and a device.
struct Open {
  at::ScalarType dtype;
  c10::Device device;
  size_t limit = 0;  // position of its limit
  int64_t bytes = 0;
  std::vector<size_t> pieces = {};
};

}  // namespace

std::vector<std::vector<size_t>> bucket_layout(const std::vector<BucketPiece>& pieces,
                                               const std::vector<int64_t>& limits) {
  std::vector<std::vector<size_t>> layout;
  std::vector<Open> open;
  for (size_t p = 0; p < pieces.size(); ++p) {
    const BucketPiece& piece = pieces[p];
    auto bucket = std::find_if(open.begin(), open.end(), [&](const Open& one) {
      return one.dtype == piece.dtype && one.device == piece.device;
    });
    if (bucket == open.end()) {
      bucket = open.insert(open.end(), {.dtype = piece.dtype, .device = piece.device});
    }
    bucket->pieces.push_back(p);
    bucket->bytes += piece.bytes;
    if (bucket->bytes < limits[bucket->limit]) continue;
    layout.push_back(std::exchange(bucket->pieces, {}));
    bucket->bytes = 0;
    if (bucket->limit + 1 < limits.size()) ++bucket->limit;
  }
  for (Open& rest : open) {
    if (!rest.pieces.empty()) layout.push_back(std::move(rest.pieces));
  }
  return layout;
}

}  // namespace reprise::runtime::internal::distributed
