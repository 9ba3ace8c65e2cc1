// Finds maximum flows and minimum cuts with exact 128-bit capacities.
//
// E. A. Dinic, "Algorithm for solution of a problem of maximum flow in networks with power
// estimation", Soviet Math. Doklady 11, 1970. It takes O(nodes^2 * arcs) at worst. On the shallow
// networks of bound/instant.cc it takes a few passes over the arcs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace reprise::internal::bound {

class MaxFlow {
 public:
  __extension__ using Amount = __int128;

  // A cut never goes through an arc of this capacity. All others together must stay below it.
  static constexpr Amount kInfinite = Amount{1} << 122;

  explicit MaxFlow(size_t nodes) : first_(nodes, -1) {}

  // Returns the number of the arc. The capacity is not negative.
  size_t add_arc(size_t from, size_t to, Amount capacity);

  // Sets the capacity of an arc. The next cut() starts from zero flow.
  void set_capacity(size_t arc, Amount capacity) { arcs_[2 * arc].capacity = capacity; }

  // These functions return the node where an arc begins, and the node where it ends.
  size_t tail(size_t arc) const { return static_cast<size_t>(arcs_[2 * arc + 1].to); }
  size_t head(size_t arc) const { return static_cast<size_t>(arcs_[2 * arc].to); }

  // Returns the least capacity of a cut between two nodes. kInfinite if every cut has an infinite
  // arc.
  Amount cut(size_t source, size_t sink);

  // After cut(): whether a node is on the source's side of the least cut that is nearest to the
  // source.
  bool on_source_side(size_t node) const { return level_[node] >= 0; }

 private:
  struct Arc {
    int32_t to;
    int32_t next;  // the next arc of the same node; -1: none
    Amount capacity;
    Amount rest;  // the capacity that is not used yet
  };

  bool find_levels(size_t source, size_t sink);
  Amount augment(size_t source, size_t sink);

  std::vector<Arc> arcs_;  // each arc, then its reverse
  std::vector<int32_t> first_, level_, current_;
  std::vector<int32_t> queue_, path_;
};

}  // namespace reprise::internal::bound
