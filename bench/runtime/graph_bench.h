// Measures graph mode and chain mode beside plain training: one model of the zoo at several
// budgets.
#pragma once

#include <cstdint>
#include <vector>

#include "training/zoo.h"

namespace reprise::bench {

struct GraphBenchOptions {
  int rounds = 7;
  std::vector<double> shares{1, 0.75, 0.6, 0.5, 0.4};
  double time_limit = 2;
  bool quick = false;
  bool consume = false;        // both sides include an optimizer's step
  bool rounding = false;       // graph mode may use alternatives that leave other bits
  bool micro_batches = false;  // graph mode chooses a number of parts for each budget
};

// This is one mode at one budget. Ratios are over plain training's step of the same round.
struct GraphRow {
  double share = 0;
  int64_t parts = 1;
  bool planned = false, chain_planned = false;
  double planning = 0;              // seconds
  double predicted = 0, gap = 0;    // graph mode: time over plain's, time over the bound
  double peak = 0, chain_peak = 0;  // measured, above the level; share of plain's
  double arena = 0;                 // height of the arena over live bytes
  int64_t fallbacks = 0;
  std::vector<double> ratios = {}, chain_ratios = {};
};

struct GraphResult {
  training::ModelConfig config;
  size_t ops = 0;
  double capture = 0;             // seconds
  double plain_time = 0;          // milliseconds of the fastest step
  double default_plain_time = 0;  // the same with the default malloc
  int64_t plain_peak = 0, level = 0;
  double floor = 0;  // smallest peak that graph mode planned, as a share of plain's
  std::vector<GraphRow> rows;
};

// Throws std::runtime_error if a step's bits are not plain training's, or if a peak is not the
// plan's. With `rounding` it throws if the numbers are further from plain training's than the last
// bits of the parameters explain.
GraphResult bench_graph_mode(const training::ModelConfig& config, const GraphBenchOptions& options);

// Returns the milliseconds of a step of plain training, the least of as many steps as there are
// rounds.
double plain_step_time(const training::ModelConfig& config, const GraphBenchOptions& options);

// Returns the smallest of at least one value.
double smallest(const std::vector<double>& values);

}  // namespace reprise::bench
