#include "plan/join/pieces.h"

#include "plan/chain/trace.h"
#include "reprise/model/lower.h"

namespace reprise::internal::join {

BranchPieces::BranchPieces(const Branch& branch, int64_t memory, int threads,
                           common::SearchControl& control)
    : model_(chain::make_model(branch_chain(branch))), cells_(model_, /*share=*/true) {
  if (!cells_.complete()) return;
  table_.emplace(model_, cells_, chain::CurveLimits{.memory = memory, .threads = threads}, control);
}

void BranchPieces::add_forward(const Piece& piece, std::vector<Run>& runs) const {
  const ChainIndex index{model_.stages};
  if (piece.option >= 0) {
    runs.push_back({index.forward(piece.first), piece.option + 1});
    return;
  }
  for (size_t k = piece.first; k < piece.end; ++k) {
    const int64_t room = piece.sweep_memory - (k == piece.first ? 0 : model_.x[k]);
    // Memory ascends and cost descends, so the last variant that fits is the cheapest.
    int32_t variant = 0;
    for (const chain::SweepVariant& way : model_.sweeps[k]) {
      if (way.memory <= room) variant = way.variant;
    }
    runs.push_back({index.forward(k), variant});
  }
}

void BranchPieces::add_reversal(const Piece& piece, bool pinned, int64_t memory,
                                std::vector<Run>& runs) const {
  const ChainIndex index{model_.stages};
  if (piece.option >= 0) {
    runs.push_back({index.backward(piece.first), piece.option});
    return;
  }
  const int64_t room =
      memory - (pinned ? 0 : activation(piece.first)) - model_.weights(piece.end, model_.stages);
  const auto cost = [&](size_t slot, int64_t m) { return chain::cost_at(table_->curve(slot), m); };
  const chain::Trace trace =
      chain::trace_segment(model_, cells_, cost, piece.first, piece.end - 1, pinned, room);
  runs.insert(runs.end(), trace.runs.begin(), trace.runs.end());
}

}  // namespace reprise::internal::join
