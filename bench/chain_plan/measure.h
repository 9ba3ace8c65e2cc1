// One chain, one budget, several planners: each plan is judged by the simulator and the verifier
// before its time is shown.
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
  std::vector<double> time_limits{1, 10};      // s, of the planners that have one
  int64_t slots = 500;                         // of the published solver
  Bytes published_bytes{int64_t{4} << 30};     // its tables may take so much
  double published_seconds = 120;              // and its search about so long
  int threads = 0;
  std::function<void(const std::string&)> progress = {};
};

// What one planner made of one budget.
struct Row {
  std::string method = {};              // the planner and its class
  std::string planner = {};             // the same with its time limit
  double budget = 0;                    // share
  std::string skipped = {};             // why there is no figure, if there is none
  std::optional<double> overhead = {};  // of the plan's time over plain training's; absent: no plan
  std::optional<double> bound = {};     // the same of the planner's own lower bound
  double seconds = 0;
  Bytes tables = {};
  double over_budget = 0;  // by how much of the budget the schedule exceeds it
  std::string termination = {};
  std::optional<double> smallest = {};  // share that would be feasible, where the budget is not
};

struct ChainResult {
  std::string name = {};
  std::string origin = {};  // of a file: where its figures come from
  size_t stages = 0;
  size_t different = 0;  // stages
  Bytes plain_peak = {};
  Nanos plain_time = {};
  std::vector<Row> rows = {};
};

ChainResult measure(const Chain& chain, const MeasureOptions& options);

struct CurveResult {
  std::string name;
  double seconds = 0;
  size_t points = 0;
  bool exact = false;  // each point is proven; otherwise time ran out
};

// The curve over all budgets, by the default planner.
CurveResult measure_curve(const Chain& chain, const std::string& schedule_class, double time_limit,
                          int threads);

}  // namespace reprise::bench
