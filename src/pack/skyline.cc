// skyline() packs by best fit on a skyline.
//
// T. Sekiyama, T. Imamichi, H. Imai, R. Raymond, "Profile-guided memory optimization for deep neural
// networks", 2018 (arXiv 1804.10001), after E. K. Burke, G. Kendall, G. Whitwell, "A New Placement
// Heuristic for the Orthogonal Stock-Cutting Problem", Operations Research 52(4), 2004.
//
// | paper                    | here                                               |
// |--------------------------|----------------------------------------------------|
// | time                     | sections                                           |
// | offset line              | Line: neighbouring sections of equal height        |
// | the lowest offset line   | lines_.lowest; the leftmost on ties                |
// | memory block to place    | of those within the line by the rule; the paper's  |
// |                          | is the longest lifetime                            |
// | lift up an offset line   | raise() to the lower neighbour, merged with it     |
//
// Complexity: each item is placed once, and each line is raised at most once between two
// placements. So there are O(n) rounds, and each round reads the items that begin on the line.
//
// Tests: unit/pack_test.cc, property/pack_property_test.cc.
#include "pack/skyline.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

namespace reprise::internal::packing {
namespace {

class Skyline {
 public:
  Skyline(const Part& part, SkylineRule rule)
      : part_(part), rule_(rule), beginning_(static_cast<size_t>(part.sections)) {
    for (size_t k = 0; k < part.items.size(); ++k) {
      beginning_[part.items[k].first].push_back(static_cast<int32_t>(k));
    }
    add({0, part.sections - 1, 0});
  }

  Solution run() {
    Solution solution;
    solution.offsets.assign(part_.items.size(), 0);
    solution.height = 0;
    for (size_t left = part_.items.size(); left > 0;) {
      const Line line = lines_.at(lowest_.begin()->second);
      const int32_t item = choose(line);
      if (item < 0) {
        raise(line);
        continue;
      }
      solution.offsets[item] = line.level;
      solution.height = std::max(solution.height, line.level + part_.items[item].size);
      place(line, part_.items[item]);
      --left;
    }
    return solution;
  }

 private:
  struct Line {
    int32_t first, last;
    int64_t level;
  };

  void add(const Line& line) {
    lines_[line.first] = line;
    lowest_.insert({line.level, line.first});
  }
  void remove(const Line& line) {
    lines_.erase(line.first);
    lowest_.erase({line.level, line.first});
  }

  // The item with the larger key is taken. Ties go to the item that begins first.
  std::tuple<double, int64_t> key(const Item& item) const {
    const int64_t span = item.last - item.first + 1;
    switch (rule_) {
      case SkylineRule::kLongest:
        return {static_cast<double>(span), item.size};
      case SkylineRule::kLargest:
        return {static_cast<double>(item.size), span};
      case SkylineRule::kLargestArea:
        break;
    }
    return {static_cast<double>(item.size) * static_cast<double>(span), item.size};
  }

  // Takes an item out of those that wait. Returns -1 if none fits on the line.
  int32_t choose(const Line& line) {
    int32_t section = -1;
    size_t position = 0;
    std::tuple<double, int64_t> best;
    for (int32_t k = line.first; k <= line.last; ++k) {
      for (size_t p = 0; p < beginning_[k].size(); ++p) {
        const Item& item = part_.items[beginning_[k][p]];
        if (item.last > line.last) continue;
        const auto value = key(item);
        if (section >= 0 && value <= best) continue;
        best = value;
        section = k;
        position = p;
      }
    }
    if (section < 0) return -1;
    std::vector<int32_t>& waiting = beginning_[section];
    const int32_t item = waiting[position];
    waiting.erase(waiting.begin() + static_cast<std::ptrdiff_t>(position));
    return item;
  }

  // Merges lines that lie side by side at one level.
  void add_merged(Line line) {
    const auto after = lines_.find(line.last + 1);
    if (after != lines_.end() && after->second.level == line.level) {
      const Line other = after->second;
      remove(other);
      line.last = other.last;
    }
    auto before = lines_.lower_bound(line.first);
    if (before != lines_.begin() && (--before)->second.level == line.level) {
      const Line other = before->second;
      remove(other);
      line.first = other.first;
    }
    add(line);
  }

  void place(const Line& line, const Item& item) {
    remove(line);
    if (line.first < item.first) add({line.first, item.first - 1, line.level});
    if (item.last < line.last) add({item.last + 1, line.last, line.level});
    add_merged({item.first, item.last, line.level + item.size});
  }

  // Raises the line to the lower of its neighbours. There is one, because a line over all sections
  // would fit every waiting item.
  void raise(const Line& line) {
    const auto at = lines_.find(line.first);
    int64_t level = std::numeric_limits<int64_t>::max();
    if (at != lines_.begin()) level = std::prev(at)->second.level;
    if (std::next(at) != lines_.end()) level = std::min(level, std::next(at)->second.level);
    remove(line);
    add_merged({line.first, line.last, level});
  }

  const Part& part_;
  const SkylineRule rule_;
  std::vector<std::vector<int32_t>> beginning_;  // by section: items that wait
  std::map<int32_t, Line> lines_;                // by first section
  std::set<std::pair<int64_t, int32_t>> lowest_;
};

}  // namespace

Solution skyline(const Part& part, SkylineRule rule) { return Skyline(part, rule).run(); }

}  // namespace reprise::internal::packing
