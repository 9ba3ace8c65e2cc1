#include "runtime/distributed/shard_layout.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

namespace reprise::runtime::internal::distributed {

std::vector<int> shard_layout(const std::vector<int64_t>& bytes, int ranks) {
  std::vector<size_t> order(bytes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return bytes[a] > bytes[b]; });
  std::vector<int64_t> held(static_cast<size_t>(ranks), 0);
  std::vector<int> owners(bytes.size(), 0);
  for (const size_t piece : order) {
    const auto least = std::min_element(held.begin(), held.end());
    owners[piece] = static_cast<int>(least - held.begin());
    *least += bytes[piece];
  }
  return owners;
}

}  // namespace reprise::runtime::internal::distributed
