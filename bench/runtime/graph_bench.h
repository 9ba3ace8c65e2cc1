// Graph mode and chain mode beside plain training: one model of the zoo at several budgets.
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
  bool consume = false;        // the step of an optimizer is part of both sides
  bool rounding = false;       // graph mode may use alternatives that leave other bits
  bool micro_batches = false;  // graph mode chooses a number of parts for each budget
};

// One mode at one budget. Ratios are to plain training's step of the same round.
struct GraphRow {
  double share = 0;
  int64_t parts = 1;
  bool planned = false, chain_planned = false;
  double planning = 0;              // s
  double predicted = 0, gap = 0;    // graph mode: time over plain training's, time over the bound
  double peak = 0, chain_peak = 0;  // measured, of plain training's, above the level
  double arena = 0;                 // height over live bytes
  int64_t fallbacks = 0;
  std::vector<double> ratios = {}, chain_ratios = {};
};

struct GraphResult {
  training::ModelConfig config;
  size_t ops = 0;
  double capture = 0;             // s
  double plain_time = 0;          // ms, smallest
  double default_plain_time = 0;  // the same with the default malloc
  int64_t plain_peak = 0, level = 0;
  double floor = 0;  // smallest peak that graph mode found a plan for, as a share
  std::vector<GraphRow> rows;
};

// Throws std::runtime_error if a step's bits, or a peak, are not those of plain training or of the plan; with `rounding`
// if its numbers are further from plain training's than the last bits of the parameters explain.
GraphResult bench_graph_mode(const training::ModelConfig& config, const GraphBenchOptions& options);

// A step of plain training, ms, the least of so many as there are rounds.
double plain_step_time(const training::ModelConfig& config, const GraphBenchOptions& options);

// Of at least one.
double smallest(const std::vector<double>& values);

}  // namespace reprise::bench
