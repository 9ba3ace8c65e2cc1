// These are the pieces of a branch: what is kept on the way to the loss, or swept and made again
// behind it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "plan/chain/branches.h"
#include "plan/chain/cells.h"
#include "plan/chain/model.h"
#include "plan/chain/table.h"
#include "plan/common/search_control.h"
#include "reprise/model/join.h"

namespace reprise::internal::join {

// A Piece is a kept stage, with its option, or a block: the stages first..end-1 are swept, and x of
// the first one stays until they are reversed.
struct Piece {
  size_t first = 0;
  size_t end = 0;
  int32_t option = -1;       // -1: a block
  int64_t sweep_memory = 0;  // of a block: the bytes of its sweep, beyond what is held and x_first
};

// BranchPieces is one branch as the recurrence of chain.cc sees it, with the costs of all its
// segments.
class BranchPieces {
 public:
  // The curves reach up to so many bytes.
  BranchPieces(const Branch& branch, int64_t memory, int threads, common::SearchControl& control);
  BranchPieces(const BranchPieces&) = delete;
  BranchPieces& operator=(const BranchPieces&) = delete;

  bool complete() const { return table_.has_value() && table_->complete(); }
  size_t stages() const { return model_.stages; }
  int64_t least_time() const { return model_.least_time; }
  Bytes memory() const { return table_ ? table_->memory() : Bytes(); }
  // These functions return the bytes of x_k, but for the input, which is always live; those of g_k;
  // and those of the weight gradients of the stages from k on.
  int64_t activation(size_t k) const { return k == 0 ? 0 : model_.x[k]; }
  int64_t pending(size_t k) const { return model_.g[k] + model_.weights(k, model_.stages); }

  // The consequences of a piece put on top of the values held at boundary k, where x_k is `pinned` if
  // the stage below reads it in its backward.
  struct Extension {
    Piece piece;
    bool pinned = false;  // at the end of the piece
    int64_t held = 0;     // more bytes are held while what lies above is reversed
    int64_t forward = 0;  // bytes while its forward runs, beyond what is held
    int64_t time = 0;     // beyond the least time of its stages, in ns
  };
  // Calls visit(extension) for each piece from boundary k that can be reversed in `memory` bytes
  // beyond what is held. The bytes hold the weight gradients and the gradient of this branch.
  template <class Visit>
  void for_each_extension(size_t k, bool pinned, int64_t memory, const Visit& visit) const {
    const int64_t input = pinned ? 0 : activation(k);
    for (size_t o = 0; o < model_.options[k].size(); ++o) {
      const chain::KeepOption& option = model_.options[k][o];
      const int64_t u = model_.given_back(k, option, pinned);
      if (option.backward - u > memory - input - model_.weights(k + 1, model_.stages)) continue;
      visit(
          Extension{.piece = {k, k + 1, static_cast<int32_t>(o)},
                    .pinned = option.reads_output,
                    .held = input - u + option.saved + (option.reads_output ? model_.x[k + 1] : 0),
                    .forward = input + option.forward,
                    .time = time_of(option.cost)});
    }
    chain::Sweep sweep(model_, k);
    for (size_t end = k + 1; end <= model_.stages; ++end) {
      sweep.extend();
      const int64_t room = memory - input - model_.weights(end, model_.stages);
      const int64_t cost = cost_of(k, end, pinned, room);
      if (cost == chain::kInfeasible) continue;
      for (const chain::CurvePoint& step : sweep.steps()) {
        visit(Extension{.piece = {k, end, -1, step.memory},
                        .pinned = false,
                        .held = input,
                        .forward = input + step.memory,
                        .time = time_of(cost) + time_of(step.cost)});
      }
    }
  }

  // Append the runs of a piece to a list, with positions in the lowered chain of the branch: those
  // on the way to the loss, and those that reverse it in `memory` bytes, counted as above.
  void add_forward(const Piece& piece, std::vector<Run>& runs) const;
  void add_reversal(const Piece& piece, bool pinned, int64_t memory, std::vector<Run>& runs) const;

 private:
  int64_t time_of(int64_t cost) const { return model_.time_of(cost) - model_.least_time; }
  int64_t cost_of(size_t first, size_t end, bool pinned, int64_t room) const {
    return chain::cost_at(table_->curve(cells_.slot(first, end - 1, pinned)), room);
  }

  chain::ChainModel model_;
  chain::ChainCells cells_;
  std::optional<chain::CurveTable> table_;  // empty: there are too many cells
};

}  // namespace reprise::internal::join
