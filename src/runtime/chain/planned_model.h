// Holds what was measured of a model, and the plan that is in force.
#pragma once

#include <memory>
#include <vector>

#include "reprise/model/chain.h"
#include "reprise/run/interpreter.h"
#include "runtime/chain/measure.h"
#include "runtime/chain/passes.h"
#include "runtime/chain/places.h"
#include "runtime/chain/prepare.h"
#include "runtime/chain/problem.h"
#include "runtime/chain/step_buffers.h"
#include "runtime/transfer/offload_memory.h"

namespace reprise::runtime::internal::chain {

// A PlannedModel is a model with its plan: everything that its steps have in common. It outlives
// them.
struct PlannedModel {
  PreparedModel model;
  StepBuffers buffers;
  Chain chain;                     // the stages of all branches, one branch after the other
  std::vector<ChainInput> inputs;  // by branch
  std::vector<std::vector<SavedForm>> saved_form;  // by stage and option
  std::vector<std::vector<NotedCalls>> noted;      // the same, of runs that stop early
  // By stage: whether its backward takes memory for copies of gradients at its end.
  std::vector<bool> copies_gradients;
  std::vector<MeasuredSplit> splits;  // by stage; empty: no backward is split
  Places places;                      // of the program
  std::shared_ptr<const Program> program;
  std::shared_ptr<const Passes> passes;  // of the program
  std::shared_ptr<transfer::OffloadMemory> memory;  // where values may move to; may be null
  std::vector<bool> moves;         // by value; empty if the program moves none
  std::vector<Bytes> value_bytes;  // of the lowered problem
  int64_t last_step = 0;                 // number of the last step that began
  bool outdated = false;                 // a stage was seen to behave in another way

  explicit PlannedModel(PreparedModel prepared);
  void set_measured(MeasuredChain measured);  // before set_plan()
  Problem problem() const { return problem_of(model, chain, inputs); }
  // Returns the weight part of the backward of an option; null if that backward is not split.
  const WeightPart* weight_part(size_t stage, size_t option) const;
  // `machine` is the device, and `memory` behind it if there is one.
  void set_plan(const std::vector<Action>& actions, const Machine& machine);
};

}  // namespace reprise::runtime::internal::chain
