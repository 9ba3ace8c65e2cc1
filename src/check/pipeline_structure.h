// Looks at the parts, the actions and the messages of a plan of a pipeline, before anybody runs it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "reprise/check/verify.h"
#include "reprise/model/pipeline.h"

namespace reprise::internal::check {

// A MessageEnds is a message between two parts on different devices, with the positions of its
// actions in the orders of the two devices. It goes from a part to the part before or behind.
struct MessageEnds {
  int32_t part = 0;  // the part that sends
  int32_t micro_batch = 0;
  MessageKind message = MessageKind::kActivation;
  int32_t link = -1;
  int32_t sender = 0, receiver = 0;  // devices
  int64_t send = -1, wait = -1;      // positions in the order of the sender
  int64_t receive = -1;              // a position in the order of the receiver
  Bytes bytes;
};

// PartActions are the positions of the actions of a part for a micro-batch in the order of its
// device. -1 stands for an action that is not there.
struct PartActions {
  int64_t forward = -1;
  int64_t backward = -1;  // or its input_gradient
  int64_t weights = -1;   // its weight_gradient
};

// A PipelineStructure has the parts, actions and messages of a plan whose structure is right.
struct PipelineStructure {
  std::vector<std::vector<PartActions>> parts;  // by part and micro-batch
  std::vector<MessageEnds> messages;            // by link, in the order of the sender
  std::vector<size_t> link_ends;                // by link: the end of its messages
};

// Reports a fault: the kind, the device or -1, the action or -1, and the message.
using ReportFault = std::function<void(ViolationKind, int32_t, int64_t, const std::string&)>;

// Returns the structure; it is complete only if nothing was reported. The pipeline must be valid.
PipelineStructure structure_of(const Pipeline& pipeline, const PipelinePlan& plan,
                               const ReportFault& report);

}  // namespace reprise::internal::check
