// The plans of steps in online mode, and what is known of steps that have none.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "reprise/runtime/online.h"
#include "runtime/online/follower.h"
#include "runtime/online/step_plan.h"

namespace reprise::runtime::internal::online {

// Keeps at most OnlineOptions::plans plans, and forgets the one that was followed least recently.
class Plans {
 public:
  explicit Plans(const OnlineOptions& options);

  // Says whether steps are planned at all: not without a budget.
  bool in_use() const { return in_use_; }
  // Returns the plans to try, the one that was followed last first.
  StepPlans all() const;
  // Learns from a step that came to its end, and plans its trace if it is time. `report.time` is that
  // of the step. It reports the time of planning, and why a step had no plan.
  void learn(Followed followed, OnlineReport& report);
  // Forgets a plan whose memory did not suffice in a step that failed.
  void drop(const StepPlan& plan);

 private:
  struct Kept {
    std::shared_ptr<const StepPlan> plan;
    Bytes reserve = {};  // of the budget, that the plan left unused
    int attempts = 1;    // number of times that the trace was planned
    int64_t reruns = 0;  // number of re-runs without a plan
  };
  struct Seen {
    uint64_t print = 0;
    int64_t times = 0;
    int64_t needed = 0;        // times, before it is planned; twice as many each time
    std::string why_not = {};  // it has no plan and gets none
  };

  void learn_from_planned(const Followed& followed, OnlineReport& report);
  void plan_trace(Seen& seen, const Followed& followed, OnlineReport& report);
  std::shared_ptr<const StepPlan> plan_of(const Trace& trace, Bytes reserve, std::string& why_not,
                                          OnlineReport& report);
  Seen& seen(uint64_t print);
  void drop(std::vector<Kept>::iterator row, std::string why_not);
  bool may_plan() const;

  const OnlineOptions options_;
  const bool in_use_;
  std::vector<Kept> kept_;  // the one that was followed last first
  std::vector<Seen> seen_;  // the one that was seen last first
  Nanos planning_, steps_;  // time so far
};

}  // namespace reprise::runtime::internal::online
