// Measures several planners on one graph at several budgets. The verifier judges each plan before
// its time is shown.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "reprise/model/graph.h"
#include "reprise/model/units.h"

namespace reprise::bench {

struct MeasureOptions {
  std::vector<double> budgets{0.9, 0.75, 0.6, 0.5, 0.4, 0.25};  // shares of plain training's peak
  std::vector<std::string> planners{"graph", "dtr"};
  bool above_fixed = false;  // true: shares count what is above the graph's fixed bytes
  double time_limit = 10;    // seconds
  int threads = 0;
  std::function<void(const std::string&)> progress = {};
};

// This is the answer of one planner to one budget.
struct Row {
  std::string planner = {};
  double budget = 0;  // share of plain training's peak
  std::string termination = {};
  double seconds = 0, processor_seconds = 0;
  std::optional<double> peak = {};      // share of plain training's peak
  std::optional<double> time = {};      // over plain training's time
  std::optional<double> bound = {};     // the planner's own lower bound, over plain training's time
  std::optional<double> smallest = {};  // if infeasible: share of the least peak it found

  std::optional<double> gap() const {
    return time && bound ? std::optional(*time / *bound - 1) : std::nullopt;
  }
};

struct GraphResult {
  std::string name;
  size_t ops = 0;
  Bytes plain_peak;
  Nanos plain_time;
  std::vector<Row> rows;
};

GraphResult measure(const Graph& graph, const MeasureOptions& options);

}  // namespace reprise::bench
