// pack() places blocks of memory in one arena. This is offline dynamic storage allocation.
//
// The size and the lifetime of every block are known beforehand. A packing gives each block an
// offset such that no two blocks share a byte while both are live. The height of a packing is the
// size of the arena that it needs. No packing is lower than the bytes that are live at once, and
// some instances have no packing that reaches them. Finding the lowest packing is NP-hard. The
// schedules of training steps nearly always reach the live bytes.
//
// Guarantees: verify_packing() accepts every packing that is returned. The packing is the same at
// every run as long as `steps`, and not `time_limit`, ends the search.
//
// Cost: the heuristics take O(n^2) at worst, with a small constant: some milliseconds for a
// thousand blocks, and less than half a second for ten thousand. They end at the first packing that
// is as low as the live bytes. If no heuristic finds one, the search goes on for at most `steps`.
// Memory is O(n + search table).
//
// Not handled: blocks that must stand at a given offset, two blocks that share memory while both
// are live (give them as one), several arenas.
//
// The sources stand at the top of the files src/pack/*.cc. Documentation: docs/packing.md.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "reprise/model/units.h"

namespace reprise {

// A block is live at the times t with begin <= t < end. Any clock will do: the positions of
// allocations and frees in a log, or the numbers of actions.
struct Block {
  Bytes bytes;
  int64_t begin = 0;
  int64_t end = 0;  // begin == end: never live, overlaps nothing

  bool operator==(const Block&) const = default;
};

struct PackOptions {
  // The size of every block is rounded up to a multiple of this number, and every offset is a
  // multiple of it. The value should be that of the allocator: 64 on the CPU, 512 on CUDA.
  Bytes alignment = Bytes(64);
  // A packing of this height is low enough, and the search for a lower one ends.
  Bytes enough = Bytes(0);
  // The limit on the effort beyond the first heuristics, in elementary steps of some ten
  // nanoseconds each. 0 stands for no such effort.
  int64_t steps = 200'000'000;
  // This cap on the time is for slow machines. Results may differ from run to run if the cap ends
  // the search.
  Nanos time_limit = Nanos(10'000'000'000);

  bool operator==(const PackOptions&) const = default;
};

struct Packing {
  std::vector<Bytes> offsets;  // one per block; 0 for blocks of no bytes or that are never live
  Bytes height;                // largest offset + rounded bytes
  Bytes live_bytes;            // most rounded bytes that are live at once
  Bytes lower_bound;           // no packing is lower; >= live_bytes
  std::string method;          // the method that found it: "skyline", "exact search", ...

  bool proven_optimal() const { return height == lower_bound; }
  bool operator==(const Packing&) const = default;
};

// Throws InputError for negative sizes, a block that ends before it begins, an alignment below 1,
// and sizes whose sum does not fit 64 bits. The error names the position of the block as a JSON
// pointer ("/3/bytes").
Packing pack(std::span<const Block> blocks, const PackOptions& options = {});

// Returns the largest sum of the rounded bytes of blocks that are live at one time. Throws
// InputError as pack() does. O(n log n).
Bytes live_bytes(std::span<const Block> blocks, Bytes alignment = Bytes(64));

struct PackingViolation {
  int64_t block = -1;  // position; -1: none, the packing as a whole
  int64_t other = -1;  // the block it overlaps with; -1: none
  std::string message;

  bool operator==(const PackingViolation&) const = default;
};

// Returns what is wrong with a packing; the list is empty if nothing is. The function reads only
// the offsets, the height and the claims, and knows nothing of how they came about. It finds
// offsets that are negative or not aligned, overlapping blocks (at least one pair is named if there
// are any), false claims of height and live bytes, and a lower bound that is not between the two.
// It also runs in production, on every packing before the packing is returned. O(n log n).
std::vector<PackingViolation> verify_packing(std::span<const Block> blocks, const Packing& packing,
                                             Bytes alignment = Bytes(64));

}  // namespace reprise
