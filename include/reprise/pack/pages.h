// An arena without fragments: blocks whose pages need not be next to each other.
//
// pack() ends above the live bytes where no order of whole blocks leaves a hole that is large enough. Where the
// system maps pages of memory at any address (mmap), a block needs free pages only: it is one range of
// addresses, and several extents of the arena. Blocks stay adjacent where pack() found a place for them.
//
// Guarantees: every result passed verify_pages(); the same at every run.
//
// Source: what paging does for processes (Kilburn et al., "One-level storage system", 1962, section 3), planned
// beforehand; the extents that are taken are those that are needed again last (L. Belady, "A study of
// replacement algorithms for a virtual-storage computer", 1966). Documentation: docs/packing.md.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "reprise/model/units.h"
#include "reprise/pack/pack.h"

namespace reprise {

// A part of the arena.
struct Extent {
  Bytes offset, bytes;

  bool operator==(const Extent&) const = default;
};

struct PageOptions {
  Bytes alignment = Bytes(64);  // that of the packing
  Bytes page = Bytes(4096);     // of the system, a multiple of the alignment

  bool operator==(const PageOptions&) const = default;
};

struct PagedPacking {
  // One list per block, in the order of its bytes. A single extent has any aligned offset; several begin at pages,
  // and all but the last end at them. {0, 0} for blocks of no bytes or that are never live.
  std::vector<std::vector<Extent>> extents;
  Bytes height;      // the largest end of an extent
  Bytes live_bytes;  // as in Packing

  bool operator==(const PagedPacking&) const = default;
};

// A placement of the blocks that is at most as high as `packing`, and as low as the live bytes but for the parts of
// pages that small blocks break up: some pages. A packing that is within a page of the live bytes is kept as it
// is.
//
// Throws InputError for a packing that verify_packing() refuses, and a page that is no positive multiple of the
// alignment. O(n log n + d * n) for d blocks that leave their place.
PagedPacking in_pages(std::span<const Block> blocks, const Packing& packing,
                      const PageOptions& options = {});

// What is wrong with a placement, as verify_packing() says it.
std::vector<PackingViolation> verify_pages(std::span<const Block> blocks, const PagedPacking& paged,
                                           const PageOptions& options = {});

}  // namespace reprise
