#include "plan/graph/bound/max_flow.h"

#include <algorithm>

namespace reprise::internal::bound {

size_t MaxFlow::add_arc(size_t from, size_t to, Amount capacity) {
  const size_t arc = arcs_.size() / 2;
  arcs_.push_back({static_cast<int32_t>(to), first_[from], capacity, 0});
  first_[from] = static_cast<int32_t>(2 * arc);
  arcs_.push_back({static_cast<int32_t>(from), first_[to], 0, 0});
  first_[to] = static_cast<int32_t>(2 * arc + 1);
  return arc;
}

// Finds the distances from the source, over arcs that have capacity left.
bool MaxFlow::find_levels(size_t source, size_t sink) {
  level_.assign(first_.size(), -1);
  level_[source] = 0;
  queue_.assign(1, static_cast<int32_t>(source));
  for (size_t k = 0; k < queue_.size(); ++k) {
    const int32_t node = queue_[k];
    for (int32_t a = first_[node]; a >= 0; a = arcs_[a].next) {
      if (arcs_[a].rest == 0 || level_[arcs_[a].to] >= 0) continue;
      level_[arcs_[a].to] = level_[node] + 1;
      queue_.push_back(arcs_[a].to);
    }
  }
  return level_[sink] >= 0;
}

// Sends flow along one path of ascending levels, found depth first. Returns the flow, or zero if
// there is no path left.
MaxFlow::Amount MaxFlow::augment(size_t source, size_t sink) {
  path_.clear();
  auto node = static_cast<int32_t>(source);
  while (node != static_cast<int32_t>(sink)) {
    int32_t& a = current_[node];
    while (a >= 0 && (arcs_[a].rest == 0 || level_[arcs_[a].to] != level_[node] + 1)) {
      a = arcs_[a].next;
    }
    if (a >= 0) {
      path_.push_back(a);
      node = arcs_[a].to;
      continue;
    }
    if (path_.empty()) return 0;
    // This node is a dead end. The arc that led here is not tried again.
    node = arcs_[path_.back() ^ 1].to;
    current_[node] = arcs_[path_.back()].next;
    path_.pop_back();
  }
  Amount amount = kInfinite;
  for (const int32_t a : path_) amount = std::min(amount, arcs_[a].rest);
  for (const int32_t a : path_) {
    arcs_[a].rest -= amount;
    arcs_[a ^ 1].rest += amount;
  }
  return amount;
}

MaxFlow::Amount MaxFlow::cut(size_t source, size_t sink) {
  for (Arc& arc : arcs_) arc.rest = arc.capacity;
  Amount flow = 0;
  while (find_levels(source, sink)) {
    current_ = first_;
    for (Amount amount = augment(source, sink); amount > 0; amount = augment(source, sink)) {
      flow += amount;
      if (flow >= kInfinite) return kInfinite;
    }
  }
  return flow;
}

}  // namespace reprise::internal::bound
