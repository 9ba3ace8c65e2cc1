// Makes random small graphs, and random plans of them, for property tests.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "reprise/model/graph.h"
#include "reprise/model/plan.h"

namespace reprise::testing {

struct RandomGraphOptions {
  int min_forward = 1;  // forward ops; the loss and about as many backward ops come on top
  int max_forward = 5;
  int64_t max_size = 10;
  int64_t max_time = 20;
  bool variants = true;  // more than one variant
  bool roles = true;     // first and replay variants
  bool takes = true;     // variants that reuse or consume what they read
  bool choices = true;   // operations that can run as two others
  bool once = true;      // forward ops that run once
  bool late = false;     // backward ops that can also run behind all others
  bool masks = false;  // backward ops that can read what a forward op of their own made of a value
};

// Makes a graph that is always valid and has plain training. The same seed and options give the
// same graph.
Graph random_graph(std::mt19937_64& random, const RandomGraphOptions& options = {});

// Returns plain training with up to `attempts` changes, wherever they can run: a re-run at a random
// place, or a run put off. Some runs take other variants and other realizations than plain
// training's, where that works. with_frees() accepts the runs.
std::vector<Run> random_runs(std::mt19937_64& random, const Graph& graph, int attempts);

// Writes a graph as compact JSON, for failure messages.
std::string describe(const Graph& graph);
std::string describe(const std::vector<Action>& actions);

}  // namespace reprise::testing
