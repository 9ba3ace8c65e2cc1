// Measures several planners on one graph at several budgets. The verifier judges each plan before
// its time is shown.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "reprise/model/chain.h"
#include "reprise/model/graph.h"
#include "reprise/model/units.h"

namespace reprise::bench {

struct MeasureOptions {
  std::vector<double> budgets{0.9, 0.75, 0.6, 0.5, 0.4, 0.25};  // shares of plain training's peak
  std::vector<std::string> planners{"graph", "dtr"};
  bool above_fixed = false;  // true: shares count what is above the graph's fixed bytes
  double time_limit = 10;    // seconds
  int threads = 0;
  // Planners that move values get a machine with a second memory. Its channels have this multiple
  // of the bandwidth that carries all that the forward saves for the backward in the time of the
  // forward, in each direction; 0: there is no machine.
  double channel = 0;
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
  bool moves = false;                   // on a machine with a second memory
  std::optional<double> smallest = {};  // if infeasible: share of the least peak it found

  std::optional<double> gap() const {
    return time && bound ? std::optional(*time / *bound - 1) : std::nullopt;
  }
};

struct GraphResult {
  std::string name;
  size_t ops = 0;
  double channel = 0;  // bytes per second; 0: there is no machine
  double unlimited =
      1;  // time without a budget, over plain training's; known if there is a machine
  Bytes plain_peak;
  Nanos plain_time;
  std::vector<Row> rows;
};

// A problem is a graph, or a chain with the graph that it is lowered to. Planners of chains plan
// the chain.
struct Problem {
  Graph graph;
  std::optional<Chain> chain = {};
};

// Returns the bandwidth that carries, in the time of plain training's forward, all values that the
// forward writes and a later op of the loss or the backward reads. For a chain: what the first
// option of every stage saves, and all outputs.
double whole_bandwidth(const Problem& problem);

GraphResult measure(const Problem& problem, const MeasureOptions& options);

}  // namespace reprise::bench
