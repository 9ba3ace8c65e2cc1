// The measuring behind profile() and remat(): a prepared model, measured.
#pragma once

#include <vector>

#include "runtime/chain/prepare.h"
#include "reprise/model/profile.h"
#include "reprise/runtime/measure.h"

namespace reprise::runtime::internal::chain {

struct MeasuredChain {
  Chain chain;
  std::vector<std::vector<SavedForm>> saved_form = {};  // of every stage's options
  std::vector<bool> copies_gradients = {};         // of every stage: StageGradients::copies
  std::vector<TimeSpread> spread = {};
};

// Sizes of the chain relate to the memory that is live when the call is made: fixed + input.bytes is that
// level, as far as the input's memory is counted there.
MeasuredChain measure(const PreparedModel& model, const Tensors& sample, const Loss& loss,
                 const MeasureOptions& options);

// What Profile says about where it was measured.
Profile describe(const PreparedModel& model, const Tensors& sample, MeasuredChain measured);

}  // namespace reprise::runtime::internal::chain
