// pack() checks the input, cuts it into parts, and spends its effort on the highest parts.
#include "reprise/pack/pack.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "pack/effort.h"
#include "pack/part_solver.h"
#include "pack/sections.h"
#include "reprise/model/errors.h"

namespace reprise {

using internal::packing::Effort;
using internal::packing::Interval;
using internal::packing::PartSolver;

namespace {

using internal::packing::Effort;
using internal::packing::Interval;
using internal::packing::PartSolver;

[[noreturn]] void refuse(size_t block, const char* field, const std::string& message) {
  throw InputError(fmt::format("block {}: {}", block, message),
                   {.pointer = fmt::format("/{}/{}", block, field)});
}

int64_t units_of(Bytes bytes, Bytes alignment) {
  return bytes.count() / alignment.count() + (bytes.count() % alignment.count() != 0);
}

// Returns the sizes in units of the alignment. Throws InputError as pack() says.
std::vector<int64_t> checked_units(std::span<const Block> blocks, Bytes alignment) {
  if (alignment < Bytes(1)) {
    throw InputError(fmt::format("an alignment of {} bytes; give at least 1", alignment.count()));
  }
  std::vector<int64_t> units;
  Bytes total;
  for (size_t k = 0; k < blocks.size(); ++k) {
    const Block& block = blocks[k];
    if (block.bytes < Bytes(0)) {
      refuse(k, "bytes", fmt::format("{} bytes; give 0 or more", block.bytes.count()));
    }
    if (block.end < block.begin) {
      refuse(k, "end", fmt::format("ends at {}, before it begins at {}", block.end, block.begin));
    }
    units.push_back(units_of(block.bytes, alignment));
    total += alignment * units.back();  // throws if the sum does not fit
  }
  return units;
}

int64_t live_units(std::span<const Block> blocks, const std::vector<int64_t>& units) {
  std::vector<std::pair<int64_t, int64_t>> changes;
  for (size_t k = 0; k < blocks.size(); ++k) {
    if (blocks[k].begin == blocks[k].end) continue;
    changes.push_back({blocks[k].begin, units[k]});
    changes.push_back({blocks[k].end, -units[k]});  // frees come first at their time: negative
  }
  std::sort(changes.begin(), changes.end());
  int64_t live = 0, most = 0;
  for (const auto& [time, change] : changes) most = std::max(most, live += change);
  return most;
}

struct LiveIntervals {
  std::vector<Interval> intervals;
  std::vector<size_t> blocks;  // by interval: position of its block
};

LiveIntervals intervals_of(std::span<const Block> blocks, const std::vector<int64_t>& units) {
  LiveIntervals found;
  for (size_t k = 0; k < blocks.size(); ++k) {
    if (units[k] == 0 || blocks[k].begin == blocks[k].end) continue;
    found.intervals.push_back({units[k], blocks[k].begin, blocks[k].end});
    found.blocks.push_back(k);
  }
  return found;
}

// The tallest parts decide the height, so they are improved first. No part is improved below the
// final height of a part before it.
void solve(std::vector<PartSolver>& solvers, int64_t goal, Effort& effort) {
  for (PartSolver& solver : solvers) solver.construct(goal - solver.part().base);
  std::sort(solvers.begin(), solvers.end(),
            [](const PartSolver& a, const PartSolver& b) { return a.top() > b.top(); });
  for (size_t k = 0; k < solvers.size() && effort.left() > 0; ++k) {
    if (solvers[k].top() <= goal) return;
    const bool last = k + 1 == solvers.size() || solvers[k + 1].top() <= goal;
    PartSolver& solver = solvers[k];
    solver.improve(goal - solver.part().base, last ? effort.left() : effort.left() / 2, effort);
    goal = std::max(goal, solver.top());
  }
}

}  // namespace

Bytes live_bytes(std::span<const Block> blocks, Bytes alignment) {
  const std::vector<int64_t> units = checked_units(blocks, alignment);
  return alignment * live_units(blocks, units);
}

Packing pack(std::span<const Block> blocks, const PackOptions& options) {
  const std::vector<int64_t> units = checked_units(blocks, options.alignment);
  const int64_t live = live_units(blocks, units);
  const LiveIntervals found = intervals_of(blocks, units);
  internal::packing::Partition partition = internal::packing::partition(found.intervals);
  Effort effort(options.steps, options.time_limit);
  std::vector<PartSolver> solvers(partition.parts.begin(), partition.parts.end());
  const int64_t enough = std::max<int64_t>(0, options.enough.count()) / options.alignment.count();
  solve(solvers, std::max(live, enough), effort);

  Packing packing;
  packing.method = "nesting";
  int64_t height = partition.height, low = live;
  for (const PartSolver& solver : solvers) {
    const internal::packing::Part& part = solver.part();
    for (size_t k = 0; k < part.items.size(); ++k) {
      partition.offsets[part.blocks[k]] = part.base + solver.best().offsets[k];
    }
    low = std::max(low, part.base + solver.low());
    if (solver.top() > height || (solver.top() == height && &solver == &solvers.front())) {
      height = solver.top();
      packing.method = solver.best().method;
    }
  }
  packing.offsets.resize(blocks.size());
  for (size_t k = 0; k < found.blocks.size(); ++k) {
    packing.offsets[found.blocks[k]] = options.alignment * partition.offsets[k];
  }
  packing.height = options.alignment * height;
  packing.live_bytes = options.alignment * live;
  packing.lower_bound = options.alignment * low;
  const auto violations = verify_packing(blocks, packing, options.alignment);
  if (!violations.empty()) {
    throw InternalError(
        fmt::format("pack() made a packing that is not valid: {}", violations.front().message));
  }
  return packing;
}

}  // namespace reprise
