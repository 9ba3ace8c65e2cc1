#include "runtime/online/plans.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <optional>
#include <utility>

namespace reprise::runtime::internal::online {
namespace {

// Prints of steps without a plan that are remembered.
constexpr size_t kMostSeen = 64;
// The planner is asked so often about one trace: again after a step in which the plan's memory did
// not suffice.
constexpr int kMostAttempts = 3;
// A plan whose re-runs cost so many times those without a plan is still used, because it saves the
// search for what to evict.
constexpr double kMostCost = 1.05;

template <class Row>
void move_to_front(std::vector<Row>& rows, typename std::vector<Row>::iterator row) {
  std::rotate(rows.begin(), row, row + 1);
}

}  // namespace

Plans::Plans(const OnlineOptions& options)
    : options_(options),
      in_use_(options.plan_after > 0 && options.plans > 0 && !options.budget.unlimited()) {}

StepPlans Plans::all() const {
  StepPlans plans;
  for (const Kept& kept : kept_) plans.push_back(kept.plan);
  return plans;
}

Plans::Seen& Plans::seen(uint64_t print) {
  auto found = std::find_if(seen_.begin(), seen_.end(),
                            [&](const Seen& seen) { return seen.print == print; });
  if (found == seen_.end()) {
    if (seen_.size() == kMostSeen) seen_.pop_back();
    found = seen_.insert(seen_.begin(), {.print = print, .needed = options_.plan_after});
  }
  move_to_front(seen_, found);
  return seen_.front();
}

bool Plans::may_plan() const {
  const auto share = options_.planning_share * static_cast<double>(steps_.count());
  return planning_ == Nanos() || static_cast<double>(planning_.count()) <= share;
}

void Plans::learn(Followed followed, OnlineReport& report) {
  steps_ += report.time;
  report.planned = followed.plan != nullptr;
  report.matched_calls = static_cast<int64_t>(followed.matched);
  report.planned_calls = static_cast<int64_t>(followed.planned);
  report.unplanned_evictions = followed.unplanned_evictions;
  report.why_not_planned = followed.why_not;
  if (followed.plan) return learn_from_planned(followed, report);
  if (!followed.traced || followed.trace.calls.empty()) return;
  Seen& seen = this->seen(followed.trace.prints.back());
  ++seen.times;
  const std::string before = followed.why_not.empty() ? "" : followed.why_not + "; ";
  if (followed.trace.evictions == 0) {
    report.why_not_planned = before + "nothing had to be evicted";
  } else if (!seen.why_not.empty()) {
    report.why_not_planned = before + seen.why_not;
  } else {
    report.why_not_planned = before + (seen.times == 1 ? "these operations were not seen before"
                                                       : "there was no plan of these operations");
    if (seen.times >= seen.needed && may_plan()) plan_trace(seen, followed, report);
  }
}

std::shared_ptr<const StepPlan> Plans::plan_of(const Trace& trace, Bytes reserve,
                                               std::string& why_not, OnlineReport& report) {
  const auto began = std::chrono::steady_clock::now();
  std::optional<StepPlan> plan;
  try {
    plan = plan_step(trace,
                     {.budget = options_.budget.resolve(Bytes(0)),
                      .reserve = reserve,
                      .smallest = options_.smallest.count(),
                      .time_limit = options_.time_limit},
                     why_not);
  } catch (const std::exception& error) {
    // The step is over and right; only later ones would have been faster.
    why_not = std::string("planning failed: ") + error.what();
  }
  report.planning_time +=
      Nanos(std::chrono::nanoseconds(std::chrono::steady_clock::now() - began).count());
  planning_ += report.planning_time;
  return plan ? std::make_shared<const StepPlan>(*std::move(plan)) : nullptr;
}

void Plans::plan_trace(Seen& seen, const Followed& followed, OnlineReport& report) {
  std::shared_ptr<const StepPlan> plan = plan_of(followed.trace, Bytes(0), seen.why_not, report);
  if (!plan) return;
  if (plan->planned_cost > kMostCost * followed.trace.rerun_cost) {
    seen.why_not = "the best plan found makes more again than evictions without a plan";
    return;
  }
  // If it has to make room for others, it is not planned again and again.
  seen.needed = 2 * std::max(seen.needed, seen.times);
  if (std::ssize(kept_) == options_.plans) kept_.pop_back();
  kept_.insert(kept_.begin(), {.plan = std::move(plan), .reruns = report.reruns});
}

// If the memory of the plan did not suffice, the trace is planned again with less. If the plan does
// not help, it is dropped.
void Plans::learn_from_planned(const Followed& followed, OnlineReport& report) {
  const auto kept = std::find_if(kept_.begin(), kept_.end(),
                                 [&](const Kept& row) { return row.plan == followed.plan; });
  if (kept == kept_.end()) return;
  move_to_front(kept_, kept);
  Kept& row = kept_.front();
  if (followed.unplanned_evictions > 0 && row.attempts < kMostAttempts && may_plan()) {
    ++row.attempts;
    row.reserve += Bytes(followed.most_missing);
    std::string why_not;
    if (auto smaller = plan_of(row.plan->trace, row.reserve, why_not, report)) {
      row.plan = std::move(smaller);
    }
    return;
  }
  if (followed.unplanned_evictions == 0 || report.reruns <= row.reruns) return;
  drop(kept_.begin(),
       "the memory of the plan did not suffice, and more was made again than without");
}

void Plans::drop(std::vector<Kept>::iterator row, std::string why_not) {
  seen(row->plan->trace.prints.back()).why_not = std::move(why_not);
  kept_.erase(row);
}

void Plans::drop(const StepPlan& plan) {
  const auto kept = std::find_if(kept_.begin(), kept_.end(),
                                 [&](const Kept& row) { return row.plan.get() == &plan; });
  if (kept == kept_.end()) return;
  drop(kept, "a step failed in which the memory of the plan did not suffice");
}

}  // namespace reprise::runtime::internal::online
