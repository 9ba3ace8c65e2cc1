// Writes a chain out as a graph.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "reprise/model/chain.h"
#include "reprise/model/graph.h"

namespace reprise {

// Returns the graph of a chain. Its values are x0..xL, of which x0 is an input, g0..gL, w<i> and
// s<i>.<option>. Its ops are F0..F<L-1>, loss and B<L-1>..B0, in that order.
//
// F<i> has a variant "fast", which reads x_i and writes x_{i+1}, and then one variant for each
// option, which also writes s<i>.<option>. A run that stops early is a variant behind them,
// which writes s<i>.<option> only and serves re-runs. B<i> has a variant for each option, in order.
// It reads g_{i+1}, s<i>.<option>, x_i if the option says reads_input, and x_{i+1} if it says
// reads_output. It writes g_i and w_i. The results are every w_i, and g0.
//
// Validates the chain first. The cost is O(stages * options).
Graph lower(const Chain& chain);

// A ForwardRun says what a variant of F<i> runs: "fast", or an option, which may stop early.
struct ForwardRun {
  std::optional<size_t> option = {};
  bool stops = false;

  bool operator==(const ForwardRun&) const = default;
};
ForwardRun forward_run(const Stage& stage, int32_t variant);
// Returns the variant in which an option stops early, or its whole run if it has none.
int32_t stopped_variant(const Stage& stage, size_t option);

// A ChainIndex gives the positions in lower(chain), so that no code looks them up by id or takes an
// id apart.
struct ChainIndex {
  size_t stages = 0;

  OpIndex forward(size_t stage) const { return static_cast<OpIndex>(stage); }
  OpIndex loss() const { return static_cast<OpIndex>(stages); }
  OpIndex backward(size_t stage) const { return static_cast<OpIndex>(2 * stages - stage); }
  // Returns the stage that this op runs forward or backward. Returns nothing for the loss, and for
  // a position that no op of the chain has.
  std::optional<size_t> stage_of(OpIndex op) const {
    const auto position = static_cast<size_t>(op);
    if (op < 0 || position == stages || position > 2 * stages) return std::nullopt;
    return position < stages ? position : 2 * stages - position;
  }

  // Variant 0 of forward(i) is "fast", and variant 1 + o is option o. Variant o of backward(i) is
  // option o. Boundaries are 0..L.
  ValueIndex activation(size_t boundary) const { return static_cast<ValueIndex>(boundary); }
  ValueIndex gradient(size_t boundary) const {
    return static_cast<ValueIndex>(stages + 1 + boundary);
  }
  ValueIndex weight_gradient(size_t stage) const {
    return static_cast<ValueIndex>(2 * (stages + 1) + stage);
  }
  // The values s<i>.<option> follow, stage by stage.
};

}  // namespace reprise
