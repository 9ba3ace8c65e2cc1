// ExactSearch packs one part within a given height by branch and bound.
#pragma once

#include <cstdint>
#include <vector>

#include "pack/effort.h"
#include "pack/sections.h"

namespace reprise::internal::packing {

// Branching is the order in which the items that may stand at a place are tried.
enum class Branching { kLongest, kLargest, kLargestArea, kRandom };

// A Style says how one run searches; all styles are complete.
struct Style {
  Branching branching = Branching::kLongest;
  bool floors = false;  // tighten fully at each node: smaller trees, slower nodes
  uint64_t seed = 1;    // seed of kRandom

  bool operator==(const Style&) const = default;
};

// Each rule that cuts the tree can be switched off; the answer stays the same.
struct ExactRules {
  bool dominance = true;  // leaves no hole that an item would fill
  bool split = true;      // pieces that no waiting item connects are solved one by one
  bool table = true;      // remembers states that failed
  bool tighten = true;    // raises a section to the items that wait over it

  bool operator==(const ExactRules&) const = default;
};

class ExactSearch {
 public:
  enum class SearchEnd { kFound, kNone, kStopped };

  // The recursion is as deep as there are items.
  static constexpr size_t kMostItems = 2000;

  explicit ExactSearch(const Part& part, const ExactRules& rules = {});

  // Searches for a packing of the part within `capacity` units. Stops after `steps`, or when the
  // effort is spent.
  SearchEnd run(int64_t capacity, const Style& style, int64_t steps, Effort& effort);

  const std::vector<int64_t>& offsets() const { return offsets_; }  // after kFound

 private:
  // A valley is a range of neighbouring sections of one level that is lower than both neighbours. A
  // neighbour is kWall if no waiting item passes it.
  struct Valley {
    int32_t first = 0, last = -1;
    int64_t level = 0, left = 0, right = 0;
    int64_t slack = 0;  // the least slack of its sections

    int64_t rim() const { return left < right ? left : right; }
  };
  // A change is an item that was placed (item >= 0), or sections that were raised.
  struct Change {
    int32_t item, first, last;
    int64_t before;  // level before the change
  };
  struct Range {
    int32_t first, last;
  };
  struct Key {
    uint64_t high = 0, low = 0;
    bool operator==(const Key&) const = default;
  };
  enum class Raised { kDone, kDead, kBranch };

  void prepare(int64_t capacity, const Style& style);
  void spend(int64_t steps);
  bool solve(Range range);
  bool solve_pieces(Range range);
  bool branch(Range range, const Valley& valley);
  Raised raise_certain(Range range, Valley& valley);
  bool raise_to_neighbours(Range range);
  bool raise_to_floors(Range range);
  bool lowest_valley(Range range, Valley& valley) const;
  bool raise(Range sections, int64_t level);
  bool fills(Range sections, int64_t hole, int32_t except) const;
  void place(int32_t number, int64_t level);
  void undo(size_t changes);
  bool twin_waits(int32_t number) const;
  Key key_of(Range range) const;
  bool passes(int32_t section) const { return crossing_[section] > 0; }

  const Part& part_;
  const ExactRules rules_;
  Style style_;
  std::vector<int64_t> offsets_;
  std::vector<std::vector<int32_t>> beginning_;  // items by their first section
  std::vector<int32_t> rank_;                    // by item: position in the order of trials
  std::vector<int32_t> twin_;                    // by item: the equal item before it, or -1
  std::vector<char> placed_;
  std::vector<int64_t> level_, slack_, floor_;  // by section; slack: capacity - level - what waits
  std::vector<int32_t> waiting_;                // items over the section
  std::vector<int32_t> crossing_;               // items over the section and over the next one
  std::vector<Change> trail_;
  std::vector<int32_t> choices_;  // choices of all nodes on the path, one behind the other
  std::vector<Key> failed_;
  std::vector<Key> item_mark_, section_mark_;  // random
  uint64_t runs_ = 0;
  int64_t steps_left_ = 0;
  bool stopped_ = false;
  Effort* effort_ = nullptr;
};

}  // namespace reprise::internal::packing
