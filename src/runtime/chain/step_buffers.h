// The buffers that forward passes advance, such as the statistics of batch norms, over a training
// step: they advance once however often a stage runs, and a failed step leaves them as they were.
#pragma once

#include <cstddef>
#include <vector>

#include "runtime/state/value_keeper.h"
#include "runtime/chain/prepare.h"

namespace reprise::runtime::internal::chain {

// Holds one copy of all buffers, from the start of the step that began last. It serves to undo the
// step and, where only one stage has a buffer, to run that stage again from what its first run saw.
// Buffers of several stages have a second copy a stage. While a stage runs again, the values to
// come back to lie in memory that all stages share, as much as the largest stage needs. All memory
// is taken by the constructor, so that it counts in every plan.
class StepBuffers {
 public:
  explicit StepBuffers(const PreparedModel& model);

  void begin_step() { step_start_.save(); }
  void undo_step() const { step_start_.restore(); }

  void before_first_run(size_t stage) { stages_[stage].shared_start.save(); }
  // `from_start`: back to what the stage's first run saw, which is known of the newest step only.
  void begin_rerun(size_t stage, bool from_start);
  void end_rerun(size_t stage) const { stages_[stage].now.restore(); }

 private:
  struct OfStage {
    state::ValueKeeper own_start;     // of buffers that no other stage has; a part of step_start_
    state::ValueKeeper shared_start;  // of the others, before the stage's first run
    state::ValueKeeper now;           // of all, while the stage runs again
  };

  state::ValueKeeper step_start_;
  std::vector<OfStage> stages_;
};

}  // namespace reprise::runtime::internal::chain
