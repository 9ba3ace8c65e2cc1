// in_pages() makes one sweep over time. A block takes the place that the packing gave it, if that
// place lies below the live bytes and is free. Any other block moves: into a hole that no other
// block needs while it lives, or else into any free hole if it is smaller than a page, and into
// free pages anywhere if it is larger. Pages that other blocks will need are taken last, and among
// them those that are needed last come first. The owners of these pages move in turn when they
// come.
//
// The height is nearly the live bytes for this reason: all bytes that are free at a time may be
// taken. A large block is refused only the bytes in pages of which another block holds a part. Then
// the arena grows by the missing bytes.
//
// Tests: unit/pages_test.cc, property/pages_property_test.cc.
#include "reprise/pack/pages.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "pack/ranges.h"
#include "reprise/model/errors.h"

namespace reprise {

using internal::packing::Range;
using internal::packing::Ranges;

namespace {

using internal::packing::Range;
using internal::packing::Ranges;

int64_t round_up(int64_t bytes, int64_t unit) { return (bytes + unit - 1) / unit * unit; }

class PageSweep {
 public:
  PageSweep(std::span<const Block> blocks, const Packing& packing, const PageOptions& options)
      : blocks_(blocks),
        page_(options.page.count()),
        height_(round_up(packing.live_bytes.count(), page_)),
        places_(blocks.size()),
        kept_(blocks.size(), false),
        extents_(blocks.size(), {Range{}}) {
    free_.add({0, height_});
    for (size_t k = 0; k < blocks.size(); ++k) {
      if (blocks[k].begin == blocks[k].end || blocks[k].bytes == Bytes(0)) continue;
      const int64_t offset = packing.offsets[k].count();
      places_[k] = {offset, offset + round_up(blocks[k].bytes.count(), options.alignment.count())};
      kept_[k] = places_[k].end <= height_;
      by_begin_.push_back(k);
    }
    by_end_ = by_begin_;
    std::stable_sort(by_begin_.begin(), by_begin_.end(),
                     [&](size_t a, size_t b) { return blocks[a].begin < blocks[b].begin; });
    std::stable_sort(by_end_.begin(), by_end_.end(),
                     [&](size_t a, size_t b) { return blocks[a].end < blocks[b].end; });
  }

  // Returns the extents of each block.
  std::vector<std::vector<Range>> run() && {
    size_t ended = 0;
    for (size_t at = 0; at < by_begin_.size(); ++at) {
      const size_t block = by_begin_[at];
      for (; blocks_[by_end_[ended]].end <= blocks_[block].begin; ++ended) {
        for (const Range& extent : extents_[by_end_[ended]]) free_.add(extent);
      }
      kept_[block] = kept_[block] && free_.contains(places_[block]);
      extents_[block] = kept_[block] ? std::vector{places_[block]} : moved(at);
      for (const Range& extent : extents_[block]) free_.remove(extent);
    }
    return std::move(extents_);
  }

 private:
  std::vector<Range> moved(size_t at) {
    const int64_t size = places_[by_begin_[at]].size();
    Ranges unused = free_;  // not needed by others while the block lives
    for (const Range& place : places_during(at)) unused.remove(place);
    Range hole = unused.best_fit(size);
    if (hole.size() == 0 && size < page_) {
      hole = free_.best_fit(size);
      if (hole.size() == 0) hole = grown(page_);
    }
    if (hole.size() > 0) return {{hole.begin, hole.begin + size}};
    return scattered(at, size);
  }

  // Lists the places of the blocks that come while this one lives and keep their place, in the
  // order in which they come.
  std::vector<Range> places_during(size_t at) const {
    std::vector<Range> places;
    for (size_t next = at + 1; next < by_begin_.size(); ++next) {
      const size_t other = by_begin_[next];
      if (blocks_[other].begin >= blocks_[by_begin_[at]].end) break;
      if (kept_[other]) places.push_back(places_[other]);
    }
    return places;
  }

  std::vector<Range> scattered(size_t at, int64_t size) {
    int64_t missing = round_up(size, page_);
    std::vector<Range> taken;
    const auto take = [&](std::vector<Range> from) {
      // The longest ranges come first, so that the extents are few.
      std::stable_sort(from.begin(), from.end(),
                       [](const Range& a, const Range& b) { return a.size() > b.size(); });
      for (const Range& range : from) {
        const int64_t part = std::min(missing, range.size());
        if (part > 0) taken.push_back({range.begin, range.begin + part});
        missing -= part;
      }
    };
    Ranges pages = free_pages();
    std::vector<std::vector<Range>> needed_again;
    for (const Range& place : places_during(at)) {
      needed_again.push_back(
          pages.remove({place.begin / page_ * page_, round_up(place.end, page_)}));
    }
    take(pages.all());
    for (auto last = needed_again.rbegin(); last != needed_again.rend(); ++last) take(*last);
    if (missing > 0) take({grown(missing)});

    Ranges joined;
    for (const Range& range : taken) joined.add(range);
    std::vector<Range> extents = joined.all();
    extents.back().end -= round_up(size, page_) - size;  // small blocks may take the rest
    return extents;
  }

  Ranges free_pages() const {
    Ranges pages;
    for (const Range& range : free_.all()) {
      pages.add({round_up(range.begin, page_), range.end / page_ * page_});
    }
    return pages;
  }

  Range grown(int64_t bytes) {
    const Range more{height_, height_ + bytes};
    height_ = more.end;
    free_.add(more);
    return more;
  }

  std::span<const Block> blocks_;
  const int64_t page_;
  int64_t height_;
  std::vector<Range> places_;  // places in the packing
  std::vector<bool> kept_;     // in its place, or will be unless that is taken before
  std::vector<std::vector<Range>> extents_;
  std::vector<size_t> by_begin_, by_end_;
  Ranges free_;
};

std::optional<std::string> wrong_options(const PageOptions& options) {
  if (options.page >= Bytes(1) && options.alignment >= Bytes(1) &&
      options.page.count() % options.alignment.count() == 0) {
    return std::nullopt;
  }
  return fmt::format("pages of {} bytes; give a positive multiple of the alignment, {}",
                     options.page.count(), options.alignment.count());
}

PagedPacking as_it_is(std::span<const Block> blocks, const Packing& packing,
                      const PageOptions& options) {
  PagedPacking paged{.extents = {}, .height = packing.height, .live_bytes = packing.live_bytes};
  for (size_t k = 0; k < blocks.size(); ++k) {
    const bool nothing = blocks[k].begin == blocks[k].end || blocks[k].bytes == Bytes(0);
    if (nothing) {
      paged.extents.push_back({Extent{}});
      continue;
    }
    const int64_t size = round_up(blocks[k].bytes.count(), options.alignment.count());
    paged.extents.push_back({Extent{packing.offsets[k], Bytes(size)}});
  }
  return paged;
}

}  // namespace

PagedPacking in_pages(std::span<const Block> blocks, const Packing& packing,
                      const PageOptions& options) {
  if (const auto wrong = wrong_options(options)) throw InputError(*wrong);
  if (const auto wrong = verify_packing(blocks, packing, options.alignment); !wrong.empty()) {
    throw InputError("the packing is not valid: " + wrong.front().message);
  }
  PagedPacking best = as_it_is(blocks, packing, options);
  const Bytes huge(std::numeric_limits<int64_t>::max() / 2);  // still small enough to sum pages
  if (packing.height - packing.live_bytes < options.page || packing.height > huge) return best;

  PagedPacking paged{.extents = {}, .height = {}, .live_bytes = packing.live_bytes};
  for (const std::vector<Range>& ranges : PageSweep(blocks, packing, options).run()) {
    std::vector<Extent>& extents = paged.extents.emplace_back();
    for (const Range& range : ranges) {
      extents.push_back({Bytes(range.begin), Bytes(range.size())});
      paged.height = std::max(paged.height, Bytes(range.end));
    }
  }
  if (paged.height < best.height) best = std::move(paged);
  if (const auto wrong = verify_pages(blocks, best, options); !wrong.empty()) {
    throw InternalError("in_pages() made a placement that is not valid: " + wrong.front().message);
  }
  return best;
}

std::vector<PackingViolation> verify_pages(std::span<const Block> blocks, const PagedPacking& paged,
                                           const PageOptions& options) {
  std::vector<PackingViolation> violations;
  if (const auto wrong = wrong_options(options)) {
    violations.push_back({-1, -1, *wrong});
    return violations;
  }
  const auto fault = [&](size_t block, const std::string& message) {
    violations.push_back(
        {static_cast<int64_t>(block), -1, fmt::format("block {} {}", block, message)});
  };
  if (paged.extents.size() != blocks.size()) {
    violations.push_back({-1, -1,
                          fmt::format("lists of extents for {} blocks, of {}", paged.extents.size(),
                                      blocks.size())});
    return violations;
  }
  // Each extent is a block to verify_packing().
  std::vector<Block> parts;
  std::vector<size_t> owners;
  Packing packing{
      .offsets = {}, .height = paged.height, .live_bytes = {}, .lower_bound = {}, .method = {}};
  for (size_t k = 0; k < blocks.size(); ++k) {
    Bytes sum;
    const std::vector<Extent>& extents = paged.extents[k];
    for (size_t e = 0; e < extents.size(); ++e) {
      const auto [offset, bytes] = extents[e];
      const bool last = e + 1 == extents.size();
      if (bytes < Bytes(0)) fault(k, "has an extent of negative size");
      if (extents.size() > 1 && (offset.count() % options.page.count() != 0 ||
                                 (!last && bytes.count() % options.page.count() != 0))) {
        fault(k, "is cut inside a page");
      }
      sum += bytes;
      parts.push_back({bytes, blocks[k].begin, blocks[k].end});
      packing.offsets.push_back(offset);
      owners.push_back(k);
    }
    if (blocks[k].begin < blocks[k].end && sum < blocks[k].bytes) {
      fault(k, fmt::format("has {} bytes of the {} that it needs", sum.count(),
                           blocks[k].bytes.count()));
    }
  }
  if (!violations.empty()) return violations;
  if (live_bytes(blocks, options.alignment) != paged.live_bytes) {
    violations.push_back({-1, -1, "the live bytes are not those of the blocks"});
  }
  packing.live_bytes = packing.lower_bound = live_bytes(parts, options.alignment);
  for (PackingViolation& wrong : verify_packing(parts, packing, options.alignment)) {
    const auto owner = [&](int64_t part) {
      return part < 0 ? part : static_cast<int64_t>(owners[part]);
    };
    const int64_t block = owner(wrong.block), other = owner(wrong.other);
    violations.push_back(
        {block, other,
         block < 0 ? wrong.message
                   : fmt::format("extents of blocks {} and {}: {}", block, other, wrong.message)});
  }
  return violations;
}

}  // namespace reprise
