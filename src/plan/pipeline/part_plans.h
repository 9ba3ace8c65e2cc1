// These are the ways in which a micro-batch may run through a part, with two budgets: what a
// micro-batch retains between its forward and its backward, and what it takes at most itself. With
// k micro-batches in flight a device needs (k - 1) * retained + peak bytes.
//
// A way is a stack of pieces, as in plan/join/pieces.h: kept stages, and blocks that are swept in the
// forward and made again in the backward by the recurrence of chain.cc. A part with the loss may also
// put the rest of its forward off until its backward. Weight gradients are summed over micro-batches:
// one of each lies on the device, and that of a further micro-batch counts beside it while it is made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "plan/chain/cells.h"
#include "plan/chain/model.h"
#include "plan/chain/table.h"
#include "plan/common/search_control.h"
#include "reprise/model/pipeline.h"

namespace reprise::internal::pipeline {

// A stack may have these pieces.
enum class Pieces {
  kAll,     // kept stages, and blocks of any length
  kSingle,  // kept stages, and blocks of one stage
};

struct Way {
  int64_t cost = 0;       // in the units of ChainModel, above the least time
  int64_t retained = 0;   // S
  int64_t peak = 0;       // P, with its own S
  uint32_t label = 0;     // where its stack is written down
  int64_t deferred = -1;  // the bytes for what is put off from the top of the stack on; -1: nothing
};

class PartPlans {
 public:
  // `memory` is the most bytes that a part may have. The curves of all segments are computed here,
  // and the stacks when they are asked for.
  PartPlans(const Pipeline& pipeline, Pieces pieces, int64_t memory, int threads,
            common::SearchControl& control);
  PartPlans(const PartPlans&) = delete;
  PartPlans& operator=(const PartPlans&) = delete;
  ~PartPlans();

  // Without the curves, which long chains may lack, there is no way at all.
  bool complete() const { return table_.has_value() && table_->complete(); }
  bool exact() const { return complete() && exact_; }  // no way was left out
  Bytes memory() const;

  // Returns the bytes that a device with these stages holds during the whole step.
  int64_t fixed(size_t first, size_t end) const;

  // Returns the fastest way of stages first..end-1 with (in_flight - 1) * S + P <= memory, or
  // nothing. `memory` does not have the fixed bytes.
  std::optional<Way> best(size_t first, size_t end, int64_t in_flight, int64_t memory);
  // Returns the least (in_flight - 1) * S + P of all ways.
  int64_t least_memory(size_t first, size_t end, int64_t in_flight);

  // Returns the time of a way on the chain's own device: forward and backward, with what runs twice.
  Nanos time(size_t first, size_t end, const Way& way) const;
  PartPlan plan(size_t first, size_t end, const Way& way) const;

 private:
  struct Label;
  class Stacks;

  Stacks& stacks(size_t first);
  const std::vector<Way>& ways(size_t first, size_t end);

  const Pipeline& pipeline_;
  Pieces pieces_;
  int64_t memory_;
  chain::ChainModel model_;
  chain::ChainCells cells_;
  std::optional<chain::CurveTable> table_;
  std::vector<int64_t> weights_, static_;  // sums over the stages before each
  std::vector<int64_t> least_;             // times, likewise
  bool exact_ = true;
  std::vector<std::unique_ptr<Stacks>> stacks_;  // by first stage
};

}  // namespace reprise::internal::pipeline
