// One graph, several budgets, several planners: each plan is judged by the verifier before its time
// is shown.
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
  bool above_fixed = false;  // of what it holds above the graph's fixed bytes
  double time_limit = 10;    // s
  int threads = 0;
  std::function<void(const std::string&)> progress = {};
};

// What one planner made of one budget.
struct Row {
  std::string planner = {};
  double budget = 0;  // share
  std::string termination = {};
  double seconds = 0, processor_seconds = 0;
  std::optional<double> peak = {};      // share of plain training's
  std::optional<double> time = {};      // over plain training's
  std::optional<double> bound = {};     // the planner's own; over plain training's time
  std::optional<double> smallest = {};  // infeasible: the least peak it found; share

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
