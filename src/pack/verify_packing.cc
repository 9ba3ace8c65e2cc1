// verify_packing() is the independent judge of packings. It makes one sweep over time and keeps the
// live blocks in order of offset. A block that enters must fit between its two neighbours. The
// judge shares no code with the methods that make packings.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <set>
#include <utility>
#include <vector>

#include "reprise/pack/pack.h"

namespace reprise {
namespace {

__extension__ using Wide = __int128;

Wide rounded(Bytes bytes, Bytes alignment) {
  const Wide unit = alignment.count();
  return (Wide{bytes.count()} + unit - 1) / unit * unit;
}

struct Event {
  int64_t time;
  bool begins;  // ends come first
  size_t block;

  bool operator<(const Event& other) const {
    return std::pair(time, begins) < std::pair(other.time, other.begins);
  }
};

std::vector<Event> events_of(std::span<const Block> blocks) {
  std::vector<Event> events;
  for (size_t k = 0; k < blocks.size(); ++k) {
    if (blocks[k].begin >= blocks[k].end || blocks[k].bytes <= Bytes(0)) continue;
    events.push_back({blocks[k].begin, true, k});
    events.push_back({blocks[k].end, false, k});
  }
  std::stable_sort(events.begin(), events.end());
  return events;
}

class Sweep {
 public:
  Sweep(std::span<const Block> blocks, const Packing& packing, Bytes alignment,
        std::vector<PackingViolation>& violations)
      : blocks_(blocks), packing_(packing), alignment_(alignment), violations_(violations) {}

  // Returns the most rounded bytes that are live at once.
  Wide run() {
    Wide bytes = 0, most = 0;
    for (const Event& event : events_of(blocks_)) {
      const Wide size = rounded(blocks_[event.block].bytes, alignment_);
      const std::pair key(packing_.offsets[event.block].count(), event.block);
      if (event.begins) {
        enter(live_.insert(key).first);
        most = std::max(most, bytes += size);
      } else {
        live_.erase(key);
        bytes -= size;
      }
    }
    return most;
  }

 private:
  using Live = std::set<std::pair<int64_t, size_t>>;

  Wide top(size_t block) const {
    return Wide{packing_.offsets[block].count()} + rounded(blocks_[block].bytes, alignment_);
  }

  // The first block that overlaps another block overlaps a neighbour. A block between the two would
  // overlap as well, and then this block would not be the first.
  void enter(Live::iterator at) {
    if (at != live_.begin()) report(*std::prev(at), *at);
    if (std::next(at) != live_.end()) report(*at, *std::next(at));
  }

  void report(const Live::value_type& lower, const Live::value_type& upper) {
    if (top(lower.second) <= upper.first) return;
    const auto low = static_cast<int64_t>(lower.second), high = static_cast<int64_t>(upper.second);
    violations_.push_back(
        {low, high,
         fmt::format("blocks {} at {} and {} at {} share memory while both are live", low,
                     lower.first, high, upper.first)});
  }

  std::span<const Block> blocks_;
  const Packing& packing_;
  const Bytes alignment_;
  std::vector<PackingViolation>& violations_;
  Live live_;
};

}  // namespace

std::vector<PackingViolation> verify_packing(std::span<const Block> blocks, const Packing& packing,
                                             Bytes alignment) {
  std::vector<PackingViolation> violations;
  const auto fault = [&](int64_t block, std::string message) {
    violations.push_back({block, -1, std::move(message)});
  };
  if (alignment < Bytes(1)) {
    fault(-1, fmt::format("an alignment of {} bytes", alignment.count()));
    return violations;
  }
  if (packing.offsets.size() != blocks.size()) {
    fault(-1, fmt::format("{} offsets for {} blocks", packing.offsets.size(), blocks.size()));
    return violations;
  }
  Wide height = 0;
  for (size_t k = 0; k < blocks.size(); ++k) {
    const int64_t offset = packing.offsets[k].count();
    if (offset < 0 || offset % alignment.count() != 0) {
      fault(static_cast<int64_t>(k),
            fmt::format("block {} at {}, which is negative or no multiple of {}", k, offset,
                        alignment.count()));
    }
    if (blocks[k].begin >= blocks[k].end) continue;
    height = std::max(height, Wide{offset} + rounded(blocks[k].bytes, alignment));
  }
  if (height != packing.height.count()) {
    fault(-1, fmt::format("the height is given as {}, and is {}", packing.height.count(),
                          static_cast<int64_t>(height)));
  }
  const Wide live = Sweep(blocks, packing, alignment, violations).run();
  if (live != packing.live_bytes.count()) {
    fault(-1, fmt::format("the live bytes are given as {}, and are {}", packing.live_bytes.count(),
                          static_cast<int64_t>(live)));
  }
  if (packing.lower_bound < packing.live_bytes || packing.lower_bound > packing.height) {
    fault(-1, fmt::format("a lower bound of {} is not between live bytes and height",
                          packing.lower_bound.count()));
  }
  return violations;
}

}  // namespace reprise
