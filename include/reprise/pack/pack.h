// Where each block of memory stands in one arena: offline dynamic storage allocation.
//
// The size of every block and the time it is live are known beforehand. A packing gives each block
// an offset such that no two blocks share a byte while both are live; its height is the arena that
// is needed. No packing is lower than the bytes that are live at once, and some instances have none that
// reaches them; to find the lowest is NP-hard. The schedules of training steps nearly always reach it.
//
// Guarantees: every packing passed verify_packing(). It is the same at every run as long as
// `steps`, and not `time_limit`, ends the search.
//
// Cost: the heuristics O(n^2) at worst, with a small constant: some milliseconds for a thousand blocks,
// less than half a second for ten thousand. They end at the first packing that is as low as
// the live bytes. If none is, the search goes on for at most `steps`. Memory O(n + search table).
//
// Not handled: blocks that must stand at a given offset, two blocks that share memory while both
// are live (give them as one), several arenas.
//
// Sources: at the top of src/pack/*.cc. Documentation: docs/packing.md.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "reprise/model/units.h"

namespace reprise {

// Memory that is live at the times t with begin <= t < end. Any clock will do: the positions of the
// allocations and frees in a log of them, the numbers of actions.
struct Block {
  Bytes bytes;
  int64_t begin = 0;
  int64_t end = 0;  // begin == end: never live, overlaps nothing

  bool operator==(const Block&) const = default;
};

struct PackOptions {
  // Every block is rounded up to a multiple of this, and every offset is a multiple of it. As the
  // allocator does it: 64 on the CPU, 512 on CUDA.
  Bytes alignment = Bytes(64);
  // A packing of this height is low enough: no search for a lower one.
  Bytes enough = Bytes(0);
  // Effort beyond the first heuristics, in elementary steps of some ten nanoseconds. 0: none.
  int64_t steps = 200'000'000;
  // A cap, for slow machines; where it ends the search, results differ from run to run.
  Nanos time_limit = Nanos(10'000'000'000);

  bool operator==(const PackOptions&) const = default;
};

struct Packing {
  std::vector<Bytes> offsets;  // one per block; 0 for blocks of no bytes or that are never live
  Bytes height;                // largest offset + rounded bytes
  Bytes live_bytes;            // most rounded bytes that are live at once
  Bytes lower_bound;           // no packing is lower; >= live_bytes
  std::string method;          // what found it, for people: "skyline", "exact search", ...

  bool proven_optimal() const { return height == lower_bound; }
  bool operator==(const Packing&) const = default;
};

// Throws InputError, with the position of the block as JSON pointer ("/3/bytes"), for negative sizes, a
// block that ends before it begins, an alignment below 1, and sizes whose sum does not fit 64 bits.
Packing pack(std::span<const Block> blocks, const PackOptions& options = {});

// The largest sum of rounded bytes of blocks that are live at one time. InputError as pack().
// O(n log n).
Bytes live_bytes(std::span<const Block> blocks, Bytes alignment = Bytes(64));

struct PackingViolation {
  int64_t block = -1;  // position; -1: none, the packing as a whole
  int64_t other = -1;  // the block it overlaps with; -1: none
  std::string message;

  bool operator==(const PackingViolation&) const = default;
};

// What is wrong with a packing; empty: nothing. It sees offsets, height and claims only, and never
// how they came about: offsets that are negative or not aligned, blocks that overlap (if any do, at least
// one pair is named), false claims of height and live bytes, a lower bound that is not between them. Runs in
// production on every packing before it is returned. O(n log n).
std::vector<PackingViolation> verify_packing(std::span<const Block> blocks, const Packing& packing,
                                             Bytes alignment = Bytes(64));

}  // namespace reprise
