// simulate() says what a plan of a pipeline costs, and verify() judges it. Neither knows a planner.
//
// Every device goes through its order. A forward waits until the activation is there that the part
// reads, and a backward until the gradient is; a wait waits until the link has carried its message.
// Everything else begins when what stands before it is over. A message starts when its sender has
// handed it over, its receiver has made room for it, and the link has carried the messages before
// it. If no order of all actions does that, the plan is a deadlock.
//
// Times, bytes and faults are those of the plan's program (lower(), model/pipeline.h) under simulate()
// and verify() of any plan, in the words of the pipeline. A message takes its bytes where it arrives
// from the receive on, and where it comes from until the wait. So bytes depend on the order of the actions alone: a plan that holds
// its budgets holds them however long operations and messages take.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "reprise/check/verify.h"
#include "reprise/model/pipeline.h"
#include "reprise/model/units.h"

namespace reprise {

struct PipelineStep {
  Nanos start;
  Nanos end;

  bool operator==(const PipelineStep&) const = default;
};

// A MessageTransfer is a message on its link.
struct MessageTransfer {
  int32_t part = 0;  // the part that sends
  int32_t micro_batch = 0;
  MessageKind message = MessageKind::kActivation;
  int32_t link = 0;
  Bytes bytes;
  Nanos sent;    // when the sender handed it over
  Nanos posted;  // when the receiver had room for it
  Nanos start;
  Nanos end;

  bool operator==(const MessageTransfer&) const = default;
};

struct DeviceTimeline {
  std::vector<PipelineStep> steps;  // one for each action
  Nanos busy;                       // the sum of the compute times
  Nanos end;
  Bytes peak;
  int64_t peak_action = -1;  // the first action that reaches the peak; -1 if the start does
  // The most micro-batches of a part whose forward has run and whose backward has not, by part of
  // the plan; 0 for parts on other devices.
  std::vector<int64_t> in_flight;

  bool operator==(const DeviceTimeline&) const = default;
};

struct PipelineTimeline {
  std::vector<DeviceTimeline> devices;
  std::vector<MessageTransfer> messages;  // by link, in the order in which it carries them
  Nanos time;                             // when the last device is done

  bool operator==(const PipelineTimeline&) const = default;
};

// Throws InputError for a plan that cannot run: parts that do not cover the chain, actions that are
// not there or come twice, messages without a partner or a link, a deadlock, a read of a value that
// is not live. verify() checks all other rules. The cost is O(actions + runs * values per run).
PipelineTimeline simulate(const Pipeline& pipeline, const PipelinePlan& plan);
// The same, but a deadlock is an answer: nothing.
std::optional<PipelineTimeline> simulate_unless_stuck(const Pipeline& pipeline,
                                                      const PipelinePlan& plan);

// Returns the violations of a plan; a valid plan has none. If the parts and actions do not fit the
// problem, a send has no receive or no wait, the ends of a link differ in order, devices wait for each
// other, or a device reads what is not there, only these faults are returned. Otherwise the program
// must pass verify() of check/verify.h with the budgets of the devices. The claims must hold: time,
// peaks, and a lower bound that is not above the time. The action of a violation is a position in
// the order of the device that its id and message name.
//
// Gradients must be summed in the order of the micro-batches, and forwards run in it, so that the
// sums and the random numbers are those of one device.
std::vector<Violation> verify(const Pipeline& pipeline, const PipelinePlan& plan);
std::vector<Violation> verify(const Pipeline& pipeline, const PipelinePlan& plan,
                              const ProblemId& problem);

}  // namespace reprise
