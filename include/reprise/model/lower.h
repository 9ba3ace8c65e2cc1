// A chain written out as a graph.
#pragma once

#include "reprise/model/chain.h"
#include "reprise/model/graph.h"

namespace reprise {

// Values x0..xL (x0 an input), s<i>.<option>, g0..gL, w<i>; operations F0..F<L-1>, loss, B<L-1>..B0 in
// that order. F<i> has a variant "fast" (reads x_i, writes x_{i+1}), then one per option (also writes
// s<i>.<option>); B<i> has one variant per option, in the same order: reads g_{i+1}, s<i>.<option>, x_i if
// reads_input, x_{i+1} if reads_output; writes g_i and w_i. Results: every w_i, and g0.
// Validates the chain first. O(stages * options).
Graph lower(const Chain& chain);

// Positions in lower(chain), so that planners need no look-up by name.
struct ChainIndex {
  size_t stages = 0;

  OpIndex forward(size_t stage) const { return static_cast<OpIndex>(stage); }
  OpIndex loss() const { return static_cast<OpIndex>(stages); }
  OpIndex backward(size_t stage) const { return static_cast<OpIndex>(2 * stages - stage); }
  // Variants of forward(i): 0 is "fast", 1 + o is option o. Variants of backward(i): o.
  // Values: boundary k in 0..L.
  ValueIndex activation(size_t boundary) const { return static_cast<ValueIndex>(boundary); }
  ValueIndex gradient(size_t boundary) const {
    return static_cast<ValueIndex>(stages + 1 + boundary);
  }
  ValueIndex weight_gradient(size_t stage) const {
    return static_cast<ValueIndex>(2 * (stages + 1) + stage);
  }
  // s<i>.<option> values follow, stage by stage.
};

}  // namespace reprise
