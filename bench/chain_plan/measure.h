// Measures several planners on one chain at one budget. The simulator and the verifier judge each
// plan before its time is shown.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "reprise/model/chain.h"
#include "reprise/model/units.h"

namespace reprise::bench {

struct MeasureOptions {
  std::vector<double> budgets{0.3, 0.5, 0.7};  // shares of plain training's peak
  std::vector<double> time_limits{1, 10};      // seconds, for the planners that have a limit
  int64_t slots = 500;                         // slots of the published solver
  Bytes published_bytes{int64_t{4} << 30};     // the published solver's tables may take so much
  double published_seconds = 120;              // the published solver may search about so long
  int threads = 0;
  std::function<void(const std::string&)> progress = {};
};

// This is the answer of one planner to one budget.
struct Row {
  std::string method = {};              // the planner and its class
  std::string planner = {};             // the method with its time limit
  double budget = 0;                    // share of plain training's peak
  std::string skipped = {};             // why there is no figure; empty if there is one
  std::optional<double> overhead = {};  // of the plan over plain training; absent: no plan
  std::optional<double> bound = {};     // smallest overhead that the planner proves possible
  double seconds = 0;
  Bytes tables = {};
  double over_budget = 0;  // excess of the schedule, as a share of the budget
  std::string termination = {};
  std::optional<double> smallest = {};  // feasible share; set if the budget is not
};

struct ChainResult {
  std::string name = {};
  std::string origin = {};  // for a file: the origin of its figures
  size_t stages = 0;
  size_t different = 0;  // number of different stages
  Bytes plain_peak = {};
  Nanos plain_time = {};
  std::vector<Row> rows = {};
};

ChainResult measure(const Chain& chain, const MeasureOptions& options);

struct CurveResult {
  std::string name;
  double seconds = 0;
  size_t points = 0;
  bool exact = false;  // true: each point is proven; false: time ran out
};

// Measures the curve over all budgets by the default planner.
CurveResult measure_curve(const Chain& chain, const std::string& schedule_class, double time_limit,
                          int threads);

}  // namespace reprise::bench
