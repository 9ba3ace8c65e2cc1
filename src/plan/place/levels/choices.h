// Choices say what happens to each stage and each boundary of a chain: the form in which the search
// of this room looks for plans. A Scheduler turns them into the runs and the lanes of a flow
// (place/flow.h).
//
// Only the gap of a value around the loss moves: from its last use before the loss to its first use
// after it. Values that are made again in the backward stay.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "plan/chain/model.h"
#include "plan/graph/schedule/schedule.h"
#include "plan/place/flow.h"
#include "plan/place/levels/segments.h"
#include "reprise/model/chain.h"
#include "reprise/model/lower.h"
#include "reprise/model/plan.h"

namespace reprise::internal::levels {

using place::kStays;

inline constexpr int32_t kSwept = -1;

// A stage is kept with an option, or swept: run forward without keeping anything, and run again in
// the backward. Neighbouring swept stages form a segment, which the backward makes again from the
// segment's input; a cut before a stage begins another one.
struct StageChoice {
  int32_t option = 0;           // or kSwept
  int32_t cut = 0;              // 1: a segment begins here
  int32_t saved_lane = kStays;  // the lane of what the stage saves
  int32_t input_lane = kStays;  // the lane of its input, if that is stored
  // A stage that begins a segment may use less memory for its backward than fits, by so many steps.
  // This leaves room for values that come back meanwhile.
  int32_t dearer = 0;

  bool operator==(const StageChoice&) const = default;
};

// By stage. The default keeps every stage with its first option, and moves nothing.
using Choices = std::vector<StageChoice>;

// Reads the choices off the runs of a persistent schedule: what is kept and stored at its loss.
Choices choices_of(const Graph& graph, const ChainIndex& index, const std::vector<Run>& runs);

// A Schedule is what a flow is built of.
struct Schedule {
  place::RunList runs;
  std::vector<int8_t> lanes;  // by interval of the chain's graph: a lane, or kStays
};

class Scheduler {
 public:
  // All references must outlive the object. `graph` is the model of the chain's graph. `memory`
  // counts the bytes beyond fixed and x_0.
  Scheduler(const chain::ChainModel& model, const schedule::ScheduleModel& graph,
            Segments& segments, int64_t memory);

  // Writes the schedule of the choices. Returns false if the backward of a segment does not fit, or
  // a segment is too long.
  bool make(const Choices& choices, Schedule& schedule);

  // Returns whether x_k lives from the forward to the backward.
  bool stored(const Choices& choices, size_t k) const;

 private:
  struct Piece {
    size_t first, end;  // stages first..end-1; a kept stage or a segment
    int64_t held;       // bytes that stay on the device for the pieces before it
  };

  void add(const Run& run, int32_t position, Schedule& schedule) const {
    schedule.runs.op_variants.push_back(graph_.op_variant_of(run.op, run.variant));
    schedule.runs.positions.push_back(position);
  }
  void add_segment(const std::vector<Run>& runs, Schedule& schedule) const;
  void move(ValueIndex value, int32_t lane, Schedule& schedule) const;
  // Returns the step of the segment's curve that its backward takes; nothing if none fits.
  std::optional<size_t> step_of(const Choices& choices, const Piece& piece) const;

  const chain::ChainModel& model_;
  const schedule::ScheduleModel& graph_;
  Segments& segments_;
  int64_t memory_;
  ChainIndex index_;
  std::vector<ValueIndex> first_saved_;  // by stage
  std::vector<int32_t> around_loss_;     // by value: the interval that the loss lies in, or -1
  std::vector<Piece> pieces_;
};

}  // namespace reprise::internal::levels
