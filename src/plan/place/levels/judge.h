// A Judge takes choices one after the other, builds the exact plan of each, and keeps the fastest.
#pragma once

#include <cstddef>
#include <optional>

#include "plan/chain/model.h"
#include "plan/common/search_control.h"
#include "plan/place/lanes.h"
#include "plan/place/levels/choices.h"
#include "plan/place/levels/flow.h"
#include "plan/place/levels/improve.h"
#include "plan/place/levels/segments.h"
#include "reprise/plan/planner.h"

namespace reprise::internal::levels {

class Judge {
 public:
  // Segments have at most `window` stages. `planner` is the name of the row. The problem must outlive
  // the judge.
  Judge(const ChainProblem& problem, size_t window, const char* planner);

  const chain::ChainModel& model() const { return model_; }
  const place::Carrier& carrier() const { return carrier_; }
  const Segments& segments() const { return segments_; }
  // Returns the bytes beyond fixed and x_0.
  int64_t memory() const { return memory_; }

  void offer(Choices choices);
  // Returns the time of the fastest plan that was offered, if one fits.
  std::optional<int64_t> best_time() const {
    if (!best_) return {};
    return best_->flow.time;
  }
  // Returns the fastest plan that was offered, with the bound over all plans; or, if none fits, the
  // smallest budget for which one does.
  Answer answer();

 private:
  const ChainProblem& problem_;
  common::SearchControl control_;
  chain::ChainModel model_;
  place::Carrier carrier_;
  int64_t memory_;
  Segments segments_;
  Scheduler scheduler_;
  FlowBuilder flows_;
  Workbench bench_;
  std::optional<Candidate> best_;
  std::optional<FlowResult> refused_;  // of those that did not fit, the one that needs least
};

}  // namespace reprise::internal::levels
