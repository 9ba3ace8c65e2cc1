// In these graphs, some variants and realizations leave other bits than plain training.
#pragma once

#include <random>

#include "reprise/model/graph.h"

namespace reprise::testing {

// Chooses half of the realizations behind the first of each choice, and half of the variants behind
// the first of each op. They round, and they take so much longer.
inline Graph some_rounding(Graph graph, std::mt19937_64& random, Nanos longer = {}) {
  const auto coin = [&] { return random() % 2 == 0; };
  for (Op& op : graph.ops) {
    for (size_t k = 1; k < op.variants.size(); ++k) {
      if (!coin()) continue;
      op.variants[k].exactness = Exactness::kRounding;
      op.variants[k].time += longer;
    }
  }
  for (const Choice& choice : graph.choices) {
    for (size_t r = 1; r < choice.realizations.size(); ++r) {
      if (!coin()) continue;
      for (const OpIndex op : choice.realizations[r].ops) {
        for (Variant& variant : graph.ops[static_cast<size_t>(op)].variants) {
          variant.exactness = Exactness::kRounding;
          variant.time += longer;
        }
      }
    }
  }
  return graph;
}

}  // namespace reprise::testing
