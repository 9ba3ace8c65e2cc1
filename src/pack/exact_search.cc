// ExactSearch is a complete search for a packing within a capacity.
//
// M. D. Moffitt, "MiniMalloc: A Lightweight Memory Allocator for Hardware-Accelerated Machine
// Learning", ASPLOS 2023 (volume 4), gives the frame: sections, packings in which every block rests
// on something ("canonical"), bounds by section, dominance, cuts into independent pieces. The
// branching is that of fixed-position strip packing, by place instead of by block: S. Martello, M.
// Monaci, D. Vigo, "An Exact Approach to the Strip-Packing Problem", INFORMS J. Computing 15(3),
// 2003.
//
// | paper                  | here                                                               |
// |------------------------|--------------------------------------------------------------------|
// | buffer, lifespan       | Item, its sections                                                 |
// | capacity               | capacity                                                           |
// | section total, slack   | slack_: capacity - level - sizes of the items that wait            |
// | floor of a section     | level_: no waiting item over the section will be lower             |
// | monotonic floor        | a valley is filled before what is above its rim                    |
// | dominated placement    | fills(): a hole in which a waiting item has room                    |
// | spatial/temporal cut   | solve_pieces()                                                     |
// | section inference      | raise_to_floors(); raise_to_neighbours() is a cheap part of it     |
//
// The state is a level for each section and the set of items that wait. A node takes a valley:
// neighbouring sections of one level, with higher sections on both sides. Let S be the packing with
// the least sum of offsets (and equal items in order) that continues the state. In S every item
// rests on the level or on another item. Two cases follow:
//
// - An item stands on the level inside the valley. The node tries each item as the leftmost one.
//   The part of the valley to its left is raised to the level beside it, because nothing stands
//   lower there.
// - No item stands on the level inside the valley. Then the valley is raised to its rim.
//
// A raise costs slack, a placement does not, and a branch ends if slack falls below 0. If a waiting
// item has room in the hole that a raise leaves, S would have the item there, so that raise is cut.
//
// Complexity: exponential at worst; O(sections + items that begin in the valley) a node.
// Assumption: two states with equal 128-bit random hashes are equal.
//
// Tests: oracle/pack_oracle_test.cc compares with exhaustive search, with each rule on and off.
#include "pack/exact_search.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <numeric>
#include <random>
#include <tuple>
#include <utility>

namespace reprise::internal::packing {
namespace {

constexpr int64_t kWall = std::numeric_limits<int64_t>::max();
constexpr size_t kTable = size_t{1} << 17;

}  // namespace

ExactSearch::ExactSearch(const Part& part, const ExactRules& rules)
    : part_(part),
      rules_(rules),
      offsets_(part.items.size()),
      beginning_(static_cast<size_t>(part.sections)),
      rank_(part.items.size()),
      twin_(part.items.size(), -1) {
  std::mt19937_64 random(7);
  const auto marks = [&](size_t count) {
    std::vector<Key> keys(count);
    for (Key& key : keys) key = {random() | 1, random() | 1};
    return keys;
  };
  item_mark_ = marks(part.items.size());
  section_mark_ = marks(static_cast<size_t>(part.sections));
  std::vector<int32_t> order(part.items.size());
  std::iota(order.begin(), order.end(), 0);
  const auto shape = [&](int32_t number) {
    const Item& item = part.items[number];
    return std::tuple(item.first, item.last, item.size);
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return shape(a) < shape(b); });
  for (size_t k = 0; k < order.size(); ++k) {
    beginning_[part.items[order[k]].first].push_back(order[k]);
    if (k > 0 && shape(order[k]) == shape(order[k - 1])) twin_[order[k]] = order[k - 1];
  }
}

void ExactSearch::prepare(int64_t capacity, const Style& style) {
  style_ = style;
  const Branching branching = style.branching;
  const auto sections = static_cast<size_t>(part_.sections);
  placed_.assign(part_.items.size(), 0);
  level_.assign(sections, 0);
  slack_.assign(sections, capacity);
  waiting_.assign(sections, 0);
  crossing_.assign(sections, 0);
  for (const Item& item : part_.items) {
    for (int32_t k = item.first; k <= item.last; ++k) {
      slack_[k] -= item.size;
      ++waiting_[k];
      if (k < item.last) ++crossing_[k];
    }
  }
  floor_.assign(sections, 0);
  trail_.clear();
  choices_.clear();
  ++runs_;
  std::mt19937_64 random(style.seed);
  std::vector<std::pair<double, int32_t>> keys;
  for (size_t k = 0; k < part_.items.size(); ++k) {
    const Item& item = part_.items[k];
    const double span = item.last - item.first + 1, size = static_cast<double>(item.size);
    double key = span * size;
    if (branching == Branching::kLongest) key = span;
    if (branching == Branching::kLargest) key = size;
    if (branching == Branching::kRandom) key *= static_cast<double>(1 + random() % 16);
    keys.push_back({-key, static_cast<int32_t>(k)});
  }
  std::sort(keys.begin(), keys.end(), [&](const auto& a, const auto& b) {
    return std::tuple(a.first, -part_.items[a.second].size, a.second) <
           std::tuple(b.first, -part_.items[b.second].size, b.second);
  });
  for (size_t k = 0; k < keys.size(); ++k) rank_[keys[k].second] = static_cast<int32_t>(k);
}

ExactSearch::SearchEnd ExactSearch::run(int64_t capacity, const Style& style, int64_t steps,
                                        Effort& effort) {
  prepare(capacity, style);
  if (*std::min_element(slack_.begin(), slack_.end()) < 0) return SearchEnd::kNone;
  if (rules_.table) failed_.resize(kTable);
  steps_left_ = steps;
  stopped_ = false;
  effort_ = &effort;
  if (solve_pieces({0, part_.sections - 1})) return SearchEnd::kFound;
  return stopped_ ? SearchEnd::kStopped : SearchEnd::kNone;
}

void ExactSearch::spend(int64_t steps) {
  steps_left_ -= steps;
  if (!effort_->spend(steps) || steps_left_ < 0) stopped_ = true;
}

// Places all waiting items of these sections, or leaves the state as it was.
bool ExactSearch::solve(Range range) {
  spend(range.last - range.first + 1);
  if (stopped_) return false;
  const size_t before = trail_.size();
  Valley valley;
  const Raised raised = raise_certain(range, valley);
  if (raised == Raised::kDone) return true;
  if (raised == Raised::kBranch) {
    const Key key = rules_.table ? key_of(range) : Key{};
    Key* entry = rules_.table ? &failed_[key.low % kTable] : nullptr;
    if (entry == nullptr || *entry != key) {
      if (branch(range, valley)) return true;
      if (entry != nullptr && !stopped_) *entry = key;
    }
  }
  undo(before);
  return false;
}

// Cuts the sections into pieces that waiting items connect, and solves each piece on its own, small
// ones first. Leaves the state as it was if a piece cannot be solved.
bool ExactSearch::solve_pieces(Range range) {
  if (!rules_.split) return solve(range);
  const size_t before = trail_.size();
  std::vector<Range> pieces;
  for (int32_t first = range.first; first <= range.last;) {
    int32_t last = first;
    while (last < range.last && passes(last)) ++last;
    if (waiting_[first] > 0) pieces.push_back({first, last});
    first = last + 1;
  }
  std::stable_sort(pieces.begin(), pieces.end(), [](const Range& a, const Range& b) {
    return a.last - a.first < b.last - b.first;
  });
  for (const Range& piece : pieces) {
    if (solve(piece)) continue;
    undo(before);
    return false;
  }
  return true;
}

bool ExactSearch::branch(Range range, const Valley& valley) {
  const size_t begin = choices_.size();
  for (int32_t k = valley.first; k <= valley.last; ++k) {
    for (const int32_t number : beginning_[k]) {
      if (placed_[number] || part_.items[number].last > valley.last) continue;
      if (!twin_waits(number)) choices_.push_back(number);
    }
  }
  const size_t end = choices_.size();
  std::sort(choices_.begin() + static_cast<std::ptrdiff_t>(begin), choices_.end(),
            [&](int32_t a, int32_t b) { return rank_[a] < rank_[b]; });
  const size_t before = trail_.size();
  bool found = false;
  for (size_t k = begin; k < end && !found && !stopped_; ++k) {
    const int32_t number = choices_[k];
    const Item& item = part_.items[number];
    const Range beside{valley.first, item.first - 1};
    const int64_t level = std::min(valley.left, valley.level + item.size);
    if (beside.first <= beside.last) {
      if (fills(beside, level - valley.level, number) || !raise(beside, level)) continue;
    }
    place(number, valley.level);
    found = solve_pieces(range);
    if (!found) undo(before);
  }
  choices_.resize(begin);
  if (found || stopped_ || valley.rim() == kWall) return found;
  const Range all{valley.first, valley.last};
  if (fills(all, valley.rim() - valley.level, -1) || !raise(all, valley.rim())) return false;
  return solve(range);
}

// Makes all raises that are certain, and finds the valley to branch on.
ExactSearch::Raised ExactSearch::raise_certain(Range range, Valley& valley) {
  for (;;) {
    if (rules_.tighten && !(style_.floors ? raise_to_floors(range) : raise_to_neighbours(range))) {
      return Raised::kDead;
    }
    if (!lowest_valley(range, valley)) return Raised::kDone;
    for (int32_t k = valley.first; k <= valley.last; ++k) {
      for (const int32_t number : beginning_[k]) {
        if (!placed_[number] && part_.items[number].last <= valley.last) return Raised::kBranch;
      }
    }
    if (!raise({valley.first, valley.last}, valley.rim())) return Raised::kDead;
  }
}

// If every item over a section is also over its higher neighbour, the section is raised to the
// neighbour's level. Returns false if that does not fit.
bool ExactSearch::raise_to_neighbours(Range range) {
  for (int32_t k = range.last - 1; k >= range.first; --k) {
    if (waiting_[k] == 0 || crossing_[k] < waiting_[k] || level_[k + 1] <= level_[k]) continue;
    if (!raise({k, k}, level_[k + 1])) return false;
  }
  for (int32_t k = range.first + 1; k <= range.last; ++k) {
    if (waiting_[k] == 0 || crossing_[k - 1] < waiting_[k] || level_[k - 1] <= level_[k]) continue;
    if (!raise({k, k}, level_[k - 1])) return false;
  }
  return true;
}

// Makes the same raises completely, but slower: an item is at least as high as the highest level
// under it, and a section is at least as high as the lowest of its items.
bool ExactSearch::raise_to_floors(Range range) {
  std::fill(floor_.begin() + range.first, floor_.begin() + range.last + 1, kWall);
  int64_t cost = 0;
  for (int32_t k = range.first; k <= range.last; ++k) {
    for (const int32_t number : beginning_[k]) {
      if (placed_[number]) continue;
      const int32_t last = part_.items[number].last;
      const int64_t least = *std::max_element(level_.begin() + k, level_.begin() + last + 1);
      for (int32_t s = k; s <= last; ++s) floor_[s] = std::min(floor_[s], least);
      cost += last - k + 1;
    }
  }
  spend(cost);
  for (int32_t k = range.first; k <= range.last; ++k) {
    if (floor_[k] == kWall || floor_[k] <= level_[k]) continue;
    if (!raise({k, k}, floor_[k])) return false;
  }
  return true;
}

// Finds the valley with the least slack; ties go to the lowest, then to the leftmost. Returns false
// if no item waits.
bool ExactSearch::lowest_valley(Range range, Valley& valley) const {
  bool found = false;
  for (int32_t first = range.first; first <= range.last;) {
    int32_t last = first;
    int64_t slack = slack_[first];
    while (last < range.last && passes(last) && level_[last + 1] == level_[first]) {
      slack = std::min(slack, slack_[++last]);
    }
    const int64_t level = level_[first];
    const int64_t left = first > range.first && passes(first - 1) ? level_[first - 1] : kWall;
    const int64_t right = last < range.last && passes(last) ? level_[last + 1] : kWall;
    if (waiting_[first] > 0 && left > level && right > level &&
        (!found || std::pair(slack, level) < std::pair(valley.slack, valley.level))) {
      valley = {first, last, level, left, right, slack};
      found = true;
    }
    first = last + 1;
  }
  return found;
}

// Raises sections of one level. Returns false and changes nothing if the slack does not allow the
// raise.
bool ExactSearch::raise(Range sections, int64_t level) {
  const int64_t before = level_[sections.first];
  for (int32_t k = sections.first; k <= sections.last; ++k) {
    if (slack_[k] < level - before) return false;
  }
  for (int32_t k = sections.first; k <= sections.last; ++k) {
    slack_[k] -= level - before;
    level_[k] = level;
  }
  trail_.push_back({-1, sections.first, sections.last, before});
  return true;
}

// Returns whether a waiting item other than `except` has room in a hole of this height over the
// sections.
bool ExactSearch::fills(Range sections, int64_t hole, int32_t except) const {
  if (!rules_.dominance) return false;
  for (int32_t k = sections.first; k <= sections.last; ++k) {
    for (const int32_t number : beginning_[k]) {
      const Item& item = part_.items[number];
      if (!placed_[number] && number != except && item.last <= sections.last && item.size <= hole) {
        return true;
      }
    }
  }
  return false;
}

void ExactSearch::place(int32_t number, int64_t level) {
  const Item& item = part_.items[number];
  for (int32_t k = item.first; k <= item.last; ++k) {
    level_[k] = level + item.size;
    --waiting_[k];
    if (k < item.last) --crossing_[k];
  }
  placed_[number] = 1;
  offsets_[number] = level;
  trail_.push_back({number, item.first, item.last, level});
}

// Takes back all changes after the first `changes`.
void ExactSearch::undo(size_t changes) {
  while (trail_.size() > changes) {
    const Change change = trail_.back();
    trail_.pop_back();
    for (int32_t k = change.first; k <= change.last; ++k) {
      if (change.item < 0) slack_[k] += level_[k] - change.before;
      level_[k] = change.before;
      if (change.item < 0) continue;
      ++waiting_[k];
      if (k < change.last) ++crossing_[k];
    }
    if (change.item >= 0) placed_[change.item] = 0;
  }
}

// Equal items stand in order, the first one lowest.
bool ExactSearch::twin_waits(int32_t number) const {
  return twin_[number] >= 0 && !placed_[twin_[number]];
}

ExactSearch::Key ExactSearch::key_of(Range range) const {
  Key key{runs_, runs_};  // states that failed in another run, with another capacity, say nothing
  for (int32_t k = range.first; k <= range.last; ++k) {
    const auto level = static_cast<uint64_t>(waiting_[k] > 0 ? level_[k] : -1) + 2;
    key.high += level * section_mark_[k].high;
    key.low += level * section_mark_[k].low;
    for (const int32_t number : beginning_[k]) {
      if (placed_[number]) continue;
      key.high += item_mark_[number].high;
      key.low += item_mark_[number].low;
    }
  }
  key.low ^= key.low >> 29;
  return key;
}

}  // namespace reprise::internal::packing
