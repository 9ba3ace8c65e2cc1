// in_pages() makes an arena without fragments: the pages of a block need not be next to each other.
//
// pack() ends above the live bytes if no order of whole blocks leaves a hole that is large enough.
// If the system maps pages of memory at any address (mmap), a block needs free pages only. The
// block is then one range of addresses and several extents of the arena. A block stays in one piece
// if pack() found a place for it.
//
// Guarantees: verify_pages() accepts every result, and the result is the same at every run.
//
// Source: the method is paging, as systems do it for processes (Kilburn et al., "One-level storage
// system", 1962, section 3), but planned beforehand. A block takes the extents that are needed
// again last (L. Belady, "A study of replacement algorithms for a virtual-storage computer", 1966).
// Documentation: docs/packing.md.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "reprise/model/units.h"
#include "reprise/pack/pack.h"

namespace reprise {

// An Extent is a part of the arena.
struct Extent {
  Bytes offset, bytes;

  bool operator==(const Extent&) const = default;
};

struct PageOptions {
  Bytes alignment = Bytes(64);  // alignment of the packing
  Bytes page = Bytes(4096);     // page size of the system, a multiple of the alignment

  bool operator==(const PageOptions&) const = default;
};

struct PagedPacking {
  // Each block has a list, in the order of its bytes. A single extent has any aligned offset.
  // Several extents begin at pages, and all but the last end at pages. The extent is {0, 0} for
  // blocks that have no bytes or are never live.
  std::vector<std::vector<Extent>> extents;
  Bytes height;      // the largest end of an extent
  Bytes live_bytes;  // as in Packing

  bool operator==(const PagedPacking&) const = default;
};

// Returns a placement of the blocks that is at most as high as `packing`. The placement is as low
// as the live bytes, apart from some pages that small blocks break up. A packing within a page of
// the live bytes is kept as it is.
//
// Throws InputError for a packing that verify_packing() refuses, and for a page that is no positive
// multiple of the alignment. O(n log n + d * n) for d blocks that leave their place.
PagedPacking in_pages(std::span<const Block> blocks, const Packing& packing,
                      const PageOptions& options = {});

// Returns what is wrong with a placement, in the form of verify_packing().
std::vector<PackingViolation> verify_pages(std::span<const Block> blocks, const PagedPacking& paged,
                                           const PageOptions& options = {});

}  // namespace reprise
