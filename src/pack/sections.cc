// partition() makes two reductions that lose nothing.
//
// 1. Only the maximal sets of blocks that are live at once matter (the maximal cliques of an
// interval graph; P. C. Gilmore, A. J. Hoffman, Canadian J. Math. 16, 1964). There are at most n of
// them, and each block is in consecutive ones. M. D. Moffitt, "MiniMalloc: A Lightweight Memory
// Allocator for Hardware-Accelerated Machine Learning", ASPLOS 2023, calls them sections.
//
// 2. A block that is live all through a part can stand at the bottom of the part. No block stands
// beside it, so it may change places with the blocks below. Without the block the part may fall
// into parts that share no time, and so on. This reduction alone packs a schedule that nests its
// blocks like a stack.
//
// Tests: unit/pack_sections_test.cc, oracle/pack_oracle_test.cc.
#include "pack/sections.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace reprise::internal::packing {
namespace {

// Open has the blocks of one part whose sections are not known yet, in order of begin and in order
// of end.
struct Open {
  std::vector<int32_t> by_begin, by_end;
  int64_t base = 0;
};

class Partitioner {
 public:
  explicit Partitioner(const std::vector<Interval>& intervals)
      : intervals_(intervals),
        first_(intervals.size()),
        last_(intervals.size()),
        out_(intervals.size()) {
    partition_.offsets.assign(intervals.size(), 0);
  }

  Partition run() {
    Open all;
    all.by_begin.resize(intervals_.size());
    std::iota(all.by_begin.begin(), all.by_begin.end(), 0);
    all.by_end = all.by_begin;
    std::stable_sort(all.by_begin.begin(), all.by_begin.end(), [&](int32_t a, int32_t b) {
      return intervals_[a].begin < intervals_[b].begin;
    });
    std::stable_sort(all.by_end.begin(), all.by_end.end(),
                     [&](int32_t a, int32_t b) { return intervals_[a].end < intervals_[b].end; });
    open_.push_back(std::move(all));
    while (!open_.empty()) {
      Open part = std::move(open_.back());
      open_.pop_back();
      if (!part.by_begin.empty()) reduce(std::move(part));
    }
    return std::move(partition_);
  }

 private:
  // Writes first_ and last_, and returns the number of sections. At the same time, an end comes
  // before a begin.
  int32_t find_sections(const Open& part) {
    int32_t section = 0;
    bool grown = false;
    size_t next = 0;
    for (const int32_t ending : part.by_end) {
      while (next < part.by_begin.size() &&
             intervals_[part.by_begin[next]].begin < intervals_[ending].end) {
        first_[part.by_begin[next++]] = section;
        grown = true;
      }
      last_[ending] = grown ? section : section - 1;
      if (grown) ++section;
      grown = false;
    }
    return section;
  }

  // Takes out the blocks that span the part, and cuts the rest where no other block is live.
  void reduce(Open part) {
    const int32_t sections = find_sections(part);
    bool taken = false;
    for (const int32_t block : part.by_begin) {
      out_[block] = first_[block] == 0 && last_[block] == sections - 1;
      if (!out_[block]) continue;
      partition_.offsets[block] = part.base;
      part.base += intervals_[block].size;
      taken = true;
    }
    partition_.height = std::max(partition_.height, part.base);
    std::vector<int32_t> pieces = cut(part, sections);
    const int32_t count = sections == 0 ? 0 : pieces.back() + 1;
    if (!taken && count == 1) {
      finish(part, sections);
      return;
    }
    std::vector<Open> rest(static_cast<size_t>(count));
    for (Open& piece : rest) piece.base = part.base;
    for (const int32_t block : part.by_begin) {
      if (!out_[block]) rest[pieces[first_[block]]].by_begin.push_back(block);
    }
    for (const int32_t block : part.by_end) {
      if (!out_[block]) rest[pieces[first_[block]]].by_end.push_back(block);
    }
    for (Open& piece : rest) open_.push_back(std::move(piece));
  }

  // Returns for each section the number of its piece: sections that a remaining block connects are
  // in one piece.
  std::vector<int32_t> cut(const Open& part, int32_t sections) const {
    std::vector<int32_t> reach(static_cast<size_t>(sections), 0);
    for (const int32_t block : part.by_begin) {
      if (!out_[block]) reach[first_[block]] = std::max(reach[first_[block]], last_[block]);
    }
    std::vector<int32_t> pieces(static_cast<size_t>(sections), 0);
    int32_t piece = 0, end = 0;
    for (int32_t k = 0; k < sections; ++k) {
      if (k > end) ++piece;
      end = std::max({end, k, reach[k]});
      pieces[k] = piece;
    }
    return pieces;
  }

  void finish(const Open& part, int32_t sections) {
    Part done;
    done.sections = sections;
    done.base = part.base;
    done.blocks = part.by_begin;
    for (const int32_t block : part.by_begin) {
      done.items.push_back({intervals_[block].size, first_[block], last_[block]});
    }
    partition_.parts.push_back(std::move(done));
  }

  const std::vector<Interval>& intervals_;
  std::vector<int32_t> first_, last_;
  std::vector<char> out_;
  std::vector<Open> open_;
  Partition partition_;
};

}  // namespace

int64_t Part::live() const {
  std::vector<int64_t> change(static_cast<size_t>(sections) + 1, 0);
  for (const Item& item : items) {
    change[item.first] += item.size;
    change[item.last + 1] -= item.size;
  }
  int64_t live = 0, most = 0;
  for (const int64_t step : change) most = std::max(most, live += step);
  return most;
}

Partition partition(const std::vector<Interval>& intervals) { return Partitioner(intervals).run(); }

}  // namespace reprise::internal::packing
