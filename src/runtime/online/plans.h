// These are the plans of steps in online mode, and what is known of steps that have none.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "reprise/runtime/online.h"
#include "runtime/online/follower.h"
#include "runtime/online/online_plan.h"
#include "runtime/online/plan_search.h"

namespace reprise::runtime::internal::online {

// Keeps at most OnlineOptions::plans plans, and forgets the one that was followed least recently.
class Plans {
 public:
  // `plan` makes the plans.
  Plans(const OnlineOptions& options, PlanFunction plan);

  // Says whether steps are planned at all: not without a budget.
  bool in_use() const { return in_use_; }
  // Takes the answer of a search in the background, if it is there. It comes before a step begins.
  void receive();
  // Returns the plans to try, the one that was followed last first.
  OnlinePlans all() const;
  // Learns from a step that came to its end, and plans its trace if it is time. `report.time` is that
  // of the step. It reports the time of planning, and why a step had no plan.
  void learn(Followed followed, OnlineReport& report);
  // Forgets a plan whose memory did not suffice in a step that failed.
  void drop(const OnlinePlan& plan);

  // Waits for the search in the background. receive() takes its answer.
  void wait() { search_.wait(); }
  // Ends the search in the background, and begins no other. It may be called on any thread.
  void stop() { search_.close(); }

 private:
  struct Kept {
    std::shared_ptr<const OnlinePlan> plan;
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
  // A Purpose names the trace that a search is for.
  struct Purpose {
    uint64_t print = 0;     // of the trace
    double rerun_cost = 0;  // of the trace
    int64_t reruns = 0;     // number of re-runs without a plan
    std::shared_ptr<const OnlinePlan>
        smaller;  // the plan that needs too much; null: there was none
  };

  void learn_from_planned(const OnlinePlan& plan, const Followed& followed,
                          const OnlineReport& report);
  void learn_from_traced(Followed followed, OnlineReport& report);
  void search(Purpose purpose, Trace trace, Bytes reserve);
  void accept(const Purpose& purpose, const PlanAnswer& answer);
  Seen& seen(uint64_t print);
  void drop(std::vector<Kept>::iterator row, std::string why_not);
  std::vector<Kept>::iterator row_of(const OnlinePlan* plan);
  bool may_plan() const;
  bool is_searching();

  const OnlineOptions options_;
  const PlanFunction plan_;
  const bool in_use_;
  std::vector<Kept> kept_;          // the one that was followed last first
  std::vector<Seen> seen_;          // the one that was seen last first
  Nanos planning_, steps_;          // time so far
  Nanos unreported_;                // of planning_
  std::optional<Purpose> purpose_;  // of the search in the background
  BackgroundSearch search_;
};

}  // namespace reprise::runtime::internal::online
