#include "runtime/online/evictor.h"

#include <fmt/format.h>

#include <algorithm>

#include "reprise/runtime/allocator.h"
#include "runtime/device/tensor_bytes.h"

namespace reprise::runtime::internal::online {

using device::counted_bytes;

bool Evictor::may_be_evicted(const Value& value) const {
  return value.resident && value.pins == 0 && value.wanted == 0 && value.can_be_made() &&
         !value.stays && value.bytes >= smallest_;
}

// Sorts the candidates by the score without the neighborhood. Equal scores stand in the order of the
// step, so that evictions do not depend on addresses.
void Evictor::find_candidates() {
  candidates_.clear();
  values_.for_each_present([&](Value& value) {
    if (may_be_evicted(value)) candidates_.push_back({&value, scorer_.base(value, clock_.now)});
  });
  std::sort(candidates_.begin(), candidates_.end(), [](const Candidate& a, const Candidate& b) {
    return a.base != b.base ? a.base < b.base : a.value->serial < b.value->serial;
  });
}

// Returns the position of the candidate with the least score. The score is never below the score
// without the neighborhood, so the search ends where that exceeds the least score so far.
size_t Evictor::best_candidate() {
  size_t best = candidates_.size();
  double least = 0;
  for (size_t i = 0; i < candidates_.size(); ++i) {
    const Candidate& candidate = candidates_[i];
    if (best < candidates_.size() && candidate.base >= least) break;
    const double score = scorer_.score(*candidate.value, clock_.now);
    if (best < candidates_.size() && score >= least) continue;
    best = i;
    least = score;
  }
  return best;
}

// Returns the bytes that this frees.
int64_t Evictor::evict(Value& value) {
  ++evictions_;
  evicted_bytes_ += value.bytes;
  values_.evict(value);
  scorer_.evicted(value);
  return counted_bytes(value.bytes, device_);
}

// Returns the bytes that this frees.
int64_t Evictor::sweep() {
  const int64_t before = memory_count(device_).live;
  values_.sweep();
  return before - memory_count(device_).live;
}

// Evicts until so many bytes are free, or nothing is left. Returns the bytes.
int64_t Evictor::evict_by_score(int64_t bytes) {
  int64_t freed = 0;
  if (bytes > 0) find_candidates();
  while (freed < bytes) {
    const size_t best = best_candidate();
    if (best == candidates_.size()) break;
    Value& value = *candidates_[best].value;
    candidates_.erase(candidates_.begin() + static_cast<std::ptrdiff_t>(best));
    freed += evict(value);
  }
  return freed;
}

std::string Evictor::make_room(int64_t bytes) {
  int64_t freed = 0;
  while (follower_ != nullptr && freed < bytes) {
    Value* const released = follower_->next_to_evict();
    if (released == nullptr) break;
    freed += evict(*released);
  }
  if (freed >= bytes) return {};
  freed += sweep();
  if (freed < bytes && follower_ != nullptr) follower_->missing(bytes - freed);
  freed += evict_by_score(bytes - freed);
  if (freed < bytes && follower_ != nullptr && follower_->give_up()) {
    freed += sweep();
    freed += evict_by_score(bytes - freed);
  }
  while (freed < bytes) {
    Value* const waiting = remaker_.take_from_waiting(smallest_);
    if (waiting == nullptr) return what_is_held();
    freed += evict(*waiting);
  }
  return {};
}

std::string Evictor::what_is_held() {
  int64_t pinned = 0, outside = 0, stays = 0, unmakeable = 0, small = 0;
  values_.for_each_present([&](const Value& value) {
    if (value.device != device_) return;
    int64_t& kind = value.pins > 0 || value.wanted > 0 ? pinned
                    : value.outside                    ? outside
                    : value.stays                      ? stays
                    : !value.can_be_made()             ? unmakeable
                                                       : small;
    kind += counted_bytes(value.bytes, device_);
  });
  const int64_t known = pinned + outside + stays + unmakeable + small;
  const int64_t other = std::max<int64_t>(0, memory_count(device_).live - known);
  return fmt::format(
      "online mode has evicted what it can. Among the live bytes, {} are read or made by "
      "operations "
      "that run, {} are from before the step (parameters, inputs, optimizer state), {} are "
      "gradients "
      "or memory that the program has pointers to, {} cannot be made again, {} are in small "
      "tensors, "
      "and {} are results and workspace of the operation that runs, or of no tensor of the step",
      pinned, outside, stays, unmakeable, small, other);
}

}  // namespace reprise::runtime::internal::online
