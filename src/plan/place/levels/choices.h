// Choices say what happens to each stage and each boundary of a chain: the form in which the search
// of this room looks for plans. A Scheduler turns them into runs and wishes for a flow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/chain/model.h"
#include "plan/place/levels/flow.h"
#include "plan/place/levels/segments.h"
#include "reprise/model/chain.h"
#include "reprise/model/lower.h"
#include "reprise/model/plan.h"

namespace reprise::internal::levels {

inline constexpr int32_t kSwept = -1;

// A stage is kept with an option, or swept: run forward without keeping anything, and run again in
// the backward. Neighbouring swept stages form a segment, which the backward makes again from the
// segment's input; a cut at a boundary divides them.
struct Choices {
  std::vector<int32_t> option;      // by stage: an option, or kSwept
  std::vector<int32_t> cut;         // by boundary, between two swept stages
  std::vector<int32_t> saved_lane;  // by stage: the lane of what it saves, or kStays
  std::vector<int32_t> input_lane;  // by boundary: the lane of the activation, or kStays
  // By the first stage of a segment: how many steps less memory than fits its backward uses, which
  // leaves room for values that come back meanwhile.
  std::vector<int32_t> dearer;

  bool operator==(const Choices&) const = default;
};

// Keeps every stage with its first option; nothing moves.
Choices keep_everything(size_t stages);

// Reads the choices off the runs of a persistent schedule: what is kept and stored at its loss.
Choices choices_of(const Graph& graph, const ChainIndex& index, const std::vector<Run>& runs);

class Scheduler {
 public:
  // All references must outlive the object. `memory` counts the bytes beyond fixed and x_0.
  Scheduler(const chain::ChainModel& model, Segments& segments, int64_t memory);

  // Writes the schedule of the choices. Returns false if the backward of a segment does not fit, or
  // a segment is too long.
  bool make(const Choices& choices, Schedule& schedule);

  ValueIndex saved_value(size_t stage, size_t option) const {
    return first_saved_[stage] + static_cast<ValueIndex>(option);
  }
  // Returns whether x_k lives from the forward to the backward.
  bool stored(const Choices& choices, size_t k) const;

 private:
  struct Piece {
    size_t first, end;  // stages first..end-1; a kept stage or a segment
    int64_t held;       // bytes that stay on the device for the pieces before it
  };

  const chain::ChainModel& model_;
  Segments& segments_;
  int64_t memory_;
  ChainIndex index_;
  std::vector<ValueIndex> first_saved_;  // by stage
  size_t values_ = 0;
  std::vector<Piece> pieces_;
};

}  // namespace reprise::internal::levels
