// A Judge takes choices one after the other, builds the exact plan of each, and keeps the fastest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>

#include "plan/chain/model.h"
#include "plan/common/search_control.h"
#include "plan/graph/schedule/schedule.h"
#include "plan/place/flow.h"
#include "plan/place/lanes.h"
#include "plan/place/levels/choices.h"
#include "plan/place/levels/improve.h"
#include "plan/place/levels/segments.h"
#include "reprise/plan/planner.h"

namespace reprise::internal::levels {

class Judge {
 public:
  static constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

  // Segments have at most `window` stages. `planner` is the name of the row. The problem must outlive
  // the judge.
  Judge(const ChainProblem& problem, size_t window, const char* planner);

  const chain::ChainModel& model() const { return model_; }
  const place::Carrier& carrier() const { return carrier_; }
  const Segments& segments() const { return segments_; }
  const Workbench& bench() const { return bench_; }
  // Returns the bytes beyond fixed and x_0.
  int64_t memory() const { return memory_; }
  // Returns a time that no plan beats.
  Nanos bound() const { return bound_; }

  // Returns the candidate of the choices, if it fits and takes no longer than `limit`. If none fits
  // in the end, the answer says what the smallest one needs.
  std::optional<Candidate> look_at(Choices choices, int64_t limit = kNoLimit);
  // Keeps the candidate, which must fit, if it is the fastest.
  void consider(Candidate candidate);
  void offer(Choices choices) {
    if (auto candidate = look_at(std::move(choices), best_ ? best_->cost.time : kNoLimit)) {
      consider(*std::move(candidate));
    }
  }
  // Returns the time of the fastest plan that was offered, if one fits.
  std::optional<int64_t> best_time() const {
    if (!best_) return {};
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
  place::Carrier carrier_;
  int64_t memory_;
  Nanos bound_;
  Segments segments_;
  Scheduler scheduler_;
  place::Flow flow_;
  Workbench bench_;
  std::optional<Candidate> best_;
  std::optional<Candidate> smallest_;  // of those that did not fit
};

}  // namespace reprise::internal::levels
