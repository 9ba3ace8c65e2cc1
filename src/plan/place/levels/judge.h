// A Judge builds the exact plans of choices. Planners that try one after the other have it keep the
// best.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>

#include "plan/chain/model.h"
#include "plan/common/search_control.h"
#include "plan/graph/schedule/schedule.h"
#include "plan/place/anneal.h"
#include "plan/place/flow.h"
#include "plan/place/lanes.h"
#include "plan/place/levels/choices.h"
#include "plan/place/levels/segments.h"
#include "reprise/plan/planner.h"

namespace reprise::internal::levels {

using Candidate = place::Candidate<Choices>;

class Judge {
 public:
  static constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

  // Segments have at most `window` stages. `planner` is the name of the row. The problem must outlive
  // the judge.
  Judge(const ChainProblem& problem, size_t window, const char* planner);

  common::SearchControl& control() { return control_; }
  const chain::ChainModel& model() const { return model_; }
  const place::LaneTimes& lane_times() const { return lane_times_; }
  const Segments& segments() const { return segments_; }
  // Returns the bytes beyond fixed and x_0.
  int64_t memory() const { return memory_; }
  // Returns a time that no plan beats. The first call computes it, in a share of the time that is
  // left.
  Nanos bound(double share = 1);

  // Returns the cost of the choices; nothing if the scheduler refuses them, or if they fit and take
  // longer than `limit`. Where they do not fit, only the excess counts.
  std::optional<place::PlanCost> cost_of(const Choices& choices, int64_t limit = kNoLimit);
  // Keeps the choices if they are the best.
  void offer(Choices choices) {
    if (const auto cost = cost_of(choices, best_time().value_or(kNoLimit))) {
      consider({std::move(choices), *cost});
    }
  }
  void consider(Candidate candidate) {
    if (!best_ || candidate < *best_) best_ = std::move(candidate);
  }
  // Returns the time of the fastest plan that was offered, if one fits.
  std::optional<int64_t> best_time() const {
    if (!best_ || !best_->cost.fits()) return {};
    return best_->cost.time;
  }
  // Returns the fastest plan that was offered, with the bound over all plans; or, if none fits, the
  // smallest budget for which one does.
  Answer answer();

 private:
  const ChainProblem& problem_;
  common::SearchControl control_;
  chain::ChainModel model_;
  schedule::ScheduleModel graph_;
  place::LaneTimes lane_times_;
  int64_t memory_;
  Segments segments_;
  Scheduler scheduler_;
  place::Flow flow_;
  Schedule schedule_;  // of the last choices
  std::optional<Nanos> bound_;
  std::optional<Candidate> best_;
};

}  // namespace reprise::internal::levels
