// Finds connected groups of element-wise calls in a recording.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "runtime/rewrite/alternative.h"
#include "runtime/rewrite/tiles/element_call.h"

namespace reprise::runtime::internal::rewrite {

// A TileGroup is a connected group of element-wise calls of one phase, which can run together
// behind the call `after`: by then everything that the group reads from outside is made and not yet
// written over, and nothing outside has read yet what the group makes. A reduction, a random draw,
// and an early reader outside therefore end a group. So does what the rules of the group say.
// `after` may lie before the first call of the group, if that writes over its operand.
struct TileGroup {
  Phase phase = Phase::kForward;
  int64_t elements = 0;
  int64_t unit = 1;  // of all calls together
  std::vector<int32_t> calls = {};
  int32_t after = -1;
};

// A TileChoice is what is decided together: groups of the forward, and the groups of the backward
// that read what only they need. Either may be absent.
struct TileChoice {
  std::vector<TileGroup> forward, backward;

  std::vector<int32_t> calls() const;  // in order
};

// GroupRules say which calls may be in a group.
struct GroupRules {
  // Returns the call at a position of the recording; nothing if no group may have it.
  std::function<std::optional<ElementCall>(int32_t)> find;
  // Whether a group is run in tiles. All its calls are then over the same elements, and a value of
  // the group is read in its own order. Otherwise a call may read a part of a value, and in any
  // order.
  bool in_tiles = true;
};

// Returns the rules of groups that run in tiles.
GroupRules rules_of_tiles(const step::Recording& recording);

class TileGroups {
 public:
  TileGroups(const Rewriter& rewriter, GroupRules rules);

  // Returns all choices in which some group has two calls or more. Their values are worth the
  // planner's time (Rewriter::is_worthwhile).
  std::vector<TileChoice> choices() const;
  // Returns the element-wise call at this position, which must be in a group.
  const ElementCall& element_call(int32_t call) const { return *element_calls_[call]; }
  // Returns the call that writes over the value; the number of calls if there is none.
  int32_t overwritten_by(int32_t value) const { return overwritten_by_[value]; }

 private:
  // Returns the group of these calls; absent if they cannot run together.
  std::optional<TileGroup> together(std::vector<int32_t> calls) const;
  // The values that the call makes for, or shares with, calls of the group that it may join.
  void add_to_groups(int32_t call);
  std::vector<TileGroup> groups() const;

  const Rewriter& rewriter_;
  const step::Recording& recording_;
  const GroupRules rules_;
  std::vector<std::optional<ElementCall>> element_calls_;  // by call
  std::vector<int32_t> overwritten_by_;                    // by value
  std::vector<int32_t> group_of_;                          // by call; -1: none
  std::vector<TileGroup> groups_;  // without calls where a group was joined to another
};

}  // namespace reprise::runtime::internal::rewrite
