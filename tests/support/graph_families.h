// Planners and bounds of graphs are tested on these kinds of small random graphs. A loop goes over
// them.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "reprise/model/graph.h"
#include "support/random_graph.h"
#include "support/scale.h"

namespace reprise::testing {

struct GraphFamily {
  const char* name;
  int graphs;  // in a quick run
  RandomGraphOptions options;
  uint64_t seed = 1;
};

// These graphs are small enough for exhaustive search.
std::vector<GraphFamily> graph_families();

template <class Check>
void for_graphs(const GraphFamily& family, const Check& check) {
  std::mt19937_64 random(family.seed);
  for (int number = 0; number < test_scale(family.graphs); ++number) {
    const Graph graph = random_graph(random, family.options);
    SCOPED_TRACE(std::string("family ") + family.name + ", seed " + std::to_string(family.seed) +
                 ", graph " + std::to_string(number) + ": " + describe(graph));
    check(graph, random);
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace reprise::testing
