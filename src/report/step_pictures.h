// These functions draw the pictures of a report that have the step's time as their axis.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "report/step_chart.h"
#include "report/walk.h"
#include "reprise/model/runlog.h"

namespace reprise::report {

// The sizes of pictures are bounded. Beyond these numbers, pictures show columns instead of single
// runs.
inline constexpr size_t kMostColumns = 480;
inline constexpr size_t kMostStripRuns = 1200;
inline constexpr size_t kMostTrails = 6000;
inline constexpr size_t kMostNamedBlocks = 400;
inline constexpr size_t kMostBlocks = 8000;
inline constexpr size_t kMostPacked = 60'000;  // packing more blocks takes too long

struct MemoryScale {
  TimeScale time;
  double top = 1;           // bytes
  Bytes budget;             //
  bool show_budget = true;  // false if it is far above everything
};

// Draws bytes over the step, stacked by kind. `measured` may be null.
std::string memory_picture(const Walk& walk, std::string_view key, std::string_view title,
                           const MemoryScale& scale, const RunLog* measured);

// Draws which ops run when, with a lane for each purpose. `names` has one entry per op.
std::string strip_picture(const Walk& walk, const std::vector<std::string>& names,
                          std::string_view title, TimeScale time);

// Draws the same as a path through the network: forward upwards, backward downwards. `depth` has
// one entry per op; see op_depths().
std::string path_picture(const Walk& walk, const std::vector<double>& depth, TimeScale time);

// Returns the depth of each op. A forward op has its position among the forward ops. A backward op
// has the depth of the last forward op whose values it reads.
std::vector<double> op_depths(const Graph& graph);

struct ArenaPicture {
  std::string svg;
  Bytes height;
  Bytes live;  // most bytes live at once: no arena is lower
  size_t blocks = 0;
  size_t left_out = 0;  // blocks that are too small to be seen
};

// Draws where pack() puts each block of memory. There is no picture (`svg` is empty) for more than
// kMostPacked blocks. Throws as plan_blocks() and pack() do.
ArenaPicture arena_picture(const Graph& graph, const std::vector<Action>& actions, const Walk& walk,
                           const std::vector<std::string>& names, TimeScale time,
                           const Machine& machine = {});

}  // namespace reprise::report
