// The pictures of a report that have the step's time as their axis.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "report/step_chart.h"
#include "report/walk.h"
#include "reprise/model/runlog.h"

namespace reprise::report {

// Sizes of pictures are bounded: beyond these they show columns instead of single runs.
inline constexpr size_t kMostColumns = 480;
inline constexpr size_t kMostStripRuns = 1200;
inline constexpr size_t kMostTrails = 6000;
inline constexpr size_t kMostNamedBlocks = 400;
inline constexpr size_t kMostBlocks = 8000;
inline constexpr size_t kMostPacked = 60'000;  // packing more takes too long

struct MemoryScale {
  TimeScale time;
  double top = 1;           // bytes
  Bytes budget;             //
  bool show_budget = true;  // not when it is far above everything
};

// Bytes over the step, stacked by kind. `measured` may be null.
std::string memory_picture(const Walk& walk, std::string_view key, std::string_view title,
                           const MemoryScale& scale, const RunLog* measured);

// What runs when: a lane for each purpose. `names` is one per op.
std::string strip_picture(const Walk& walk, const std::vector<std::string>& names,
                          std::string_view title, TimeScale time);

// The same as a path through the network: forward upwards, backward downwards. `depth` is one per op, see
// op_depths().
std::string path_picture(const Walk& walk, const std::vector<double>& depth, TimeScale time);

// For a forward op its position among them; for a backward op that of the last forward op whose values
// it reads.
std::vector<double> op_depths(const Graph& graph);

struct ArenaPicture {
  std::string svg;
  Bytes height;
  Bytes live;  // most bytes that are live at once: no arena is lower
  size_t blocks = 0;
  size_t left_out = 0;  // too small to be seen
};

// Where each block of memory stands, from pack(). Without a picture (`svg` empty) if there are more than
// kMostPacked. Errors as plan_blocks() and pack().
ArenaPicture arena_picture(const Graph& graph, const std::vector<Action>& actions, const Walk& walk,
                           const std::vector<std::string>& names, TimeScale time);

}  // namespace reprise::report
