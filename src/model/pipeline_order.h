// Brings what the devices of a pipeline do into one order.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/pipeline_values.h"
#include "reprise/model/errors.h"
#include "reprise/model/pipeline.h"

namespace reprise::internal {

// An UnknownInOrder says that an action names what is not there.
struct UnknownInOrder : InputError {
  UnknownInOrder(const PipelinePlace& at, const std::string& message);

  PipelinePlace place;
};

// A PipelineMessages numbers the messages of a plan: a part sends activations to the next one and
// gradients to the one before, if that lies on another device.
class PipelineMessages {
 public:
  // The parts must have devices of the pipeline.
  PipelineMessages(const Pipeline& pipeline, const PipelinePlan& plan);

  // Returns the message that an action hands over, makes room for, waits for or reads, or -1.
  int64_t of(const PipelineAction& action) const {
    const bool reads = is_compute(action.kind) || action.kind == PipelineActionKind::kReceive;
    const bool gradient = is_compute(action.kind) ? is_backward(action.kind)
                                                  : action.message == MessageKind::kGradient;
    const auto border = static_cast<size_t>(action.part - (reads != gradient ? 1 : 0));
    const bool none = action.kind == PipelineActionKind::kWeightGradient || border >= borders();
    const size_t row = 2 * border + (gradient ? 1 : 0);
    if (none || links_[row] == kNone) return -1;
    return static_cast<int64_t>(row) * micro_batches_ + action.micro_batch;
  }
  int64_t count() const { return static_cast<int64_t>(links_.size()) * micro_batches_; }
  // Says whether there is a message of this number.
  bool is_there(int64_t message) const { return links_[message / micro_batches_] != kNone; }

  int32_t link(int64_t message) const { return links_[message / micro_batches_]; }  // -1: none
  int64_t micro_batch(int64_t message) const { return message % micro_batches_; }
  bool is_gradient(int64_t message) const { return message / micro_batches_ % 2 != 0; }
  MessageKind kind(int64_t message) const {
    return is_gradient(message) ? MessageKind::kGradient : MessageKind::kActivation;
  }
  int32_t sending_part(int64_t message) const { return border(message) + is_gradient(message); }
  int32_t sender(int64_t message) const { return device(sending_part(message)); }
  int32_t receiver(int64_t message) const {
    return device(border(message) + !is_gradient(message));
  }
  // Returns the boundary of the chain that the message is about.
  size_t boundary(int64_t message) const { return end_of(plan_.parts[border(message)]); }

 private:
  static constexpr int32_t kNone = -2;

  size_t borders() const { return links_.size() / 2; }
  int32_t border(int64_t message) const {
    return static_cast<int32_t>(message / micro_batches_ / 2);
  }
  int32_t device(int32_t part) const { return plan_.parts[part].device; }

  const PipelinePlan& plan_;
  int64_t micro_batches_;
  std::vector<int32_t> links_;  // by border between two parts, and kind
};

// Goes through the orders until no action can begin: an action stands behind everything that it waits
// for. Puts the actions that cannot begin into `stuck`, the first of each device. The cost is
// O(actions).
std::vector<PipelinePlace> in_one_order(const Pipeline& pipeline, const PipelinePlan& plan,
                                        const PipelineMessages& messages,
                                        std::vector<PipelineFlaw>& stuck);

}  // namespace reprise::internal
