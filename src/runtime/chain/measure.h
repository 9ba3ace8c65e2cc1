// Measures a prepared model for profile() and remat().
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "reprise/model/profile.h"
#include "reprise/runtime/measure.h"
#include "runtime/chain/measure_split.h"
#include "runtime/chain/prepare.h"

namespace reprise::runtime::internal::chain {

struct MeasuredChain {
  Chain
      chain;  // the stages of all branches, one branch after the other, and the bytes of all inputs
  std::vector<ChainInput> inputs = {};                  // by branch
  std::vector<std::vector<SavedForm>> saved_form = {};  // by stage and option
  std::vector<std::vector<NotedCalls>> noted = {};      // the same, of runs that stop early
  std::vector<bool> copies_gradients = {};              // by stage: StageGradients::copies
  std::vector<MeasuredSplit> splits = {};               // by stage, if measure() was asked for them
  // The ids of saved values whose memory cannot be taken from them and given back, because some of it
  // belongs to no tensor that an operator made.
  std::vector<std::string> stays = {};
  std::vector<TimeSpread> spread = {};
  int64_t processor_percent = 100;  // Profile::processor_percent
  // The loss has two counts: bytes of the gradients alone that it hands to the chain, and bytes that
  // stay until the end of a step in which the chain's backward runs inside that of the loss.
  Bytes loss_gradient = {}, loss_resident = {};
  // The chain for a caller who drops the output with the loss, if `chain` is for one who holds it.
  std::optional<Chain> output_dropped = {};
};

// The sizes of the chain refer to the memory that is live at the time of the call. The sum fixed +
// input.bytes is that level, as far as it counts the memory of the input. `samples` has the inputs of
// each branch. Memory that several of them have counts with the first. `splitting`: also
// measures the halves of all backwards.
MeasuredChain measure(const PreparedModel& model, const std::vector<Tensors>& samples,
                      const Loss& loss, const MeasureOptions& options,
                      const Splitting& splitting = {});

// Makes a Profile that also says where the chain was measured.
Profile describe(const PreparedModel& model, const Tensors& sample, MeasuredChain measured);

}  // namespace reprise::runtime::internal::chain
