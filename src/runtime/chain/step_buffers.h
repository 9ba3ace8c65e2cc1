// Keeps the buffers that forward passes advance, such as the statistics of batch norms, over a
// training step. They advance once, however often a stage runs, and a failed step leaves them as
// they were.
#pragma once

#include <cstddef>
#include <vector>

#include "runtime/chain/prepare.h"
#include "runtime/state/value_keeper.h"

namespace reprise::runtime::internal::chain {

// Holds one copy of all buffers from the start of the last step that began. The copy serves to undo
// the step. Where only one stage has a buffer, the copy also serves a re-run of that stage, which
// must see what the first run saw. Buffers of several stages have a second copy for each stage.
// While a stage runs again, the current values wait in memory that all stages share, and that is as
// large as the largest stage needs. The constructor takes all memory, so that it counts in every
// plan.
class StepBuffers {
 public:
  explicit StepBuffers(const PreparedModel& model);

  void begin_step() { step_start_.save(); }
  void undo_step() const { step_start_.restore(); }

  void before_first_run(size_t stage) { stages_[stage].shared_start.save(); }
  // `from_start` goes back to the values that the stage's first run saw. They are known only for
  // the newest step.
  void begin_rerun(size_t stage, bool from_start);
  void end_rerun(size_t stage) const { stages_[stage].now.restore(); }

 private:
  struct OfStage {
    state::ValueKeeper own_start;     // buffers that no other stage has; a part of step_start_
    state::ValueKeeper shared_start;  // the other buffers, before the stage's first run
    state::ValueKeeper now;           // all buffers, while the stage runs again
  };

  state::ValueKeeper step_start_;
  std::vector<OfStage> stages_;
};

}  // namespace reprise::runtime::internal::chain
