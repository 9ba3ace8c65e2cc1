#include "runtime/online/plans.h"

#include <algorithm>
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

Plans::Plans(const OnlineOptions& options, PlanFunction plan)
    : options_(options),
      plan_(std::move(plan)),
      in_use_(options.plan_after > 0 && options.plans > 0 && !options.budget.unlimited()) {}

OnlinePlans Plans::all() const {
  OnlinePlans plans;
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

std::vector<Plans::Kept>::iterator Plans::row_of(const OnlinePlan* plan) {
  return std::find_if(kept_.begin(), kept_.end(),
                      [&](const Kept& row) { return row.plan.get() == plan; });
}

bool Plans::may_plan() const {
  const auto share = options_.planning_share * static_cast<double>(steps_.count());
  return planning_ == Nanos() || static_cast<double>(planning_.count()) <= share;
}

// In a child of fork() the search that its parent began is forgotten.
bool Plans::is_searching() {
  if (purpose_ && !search_.under_way()) purpose_.reset();
  return purpose_.has_value();
}

void Plans::receive() {
  if (!is_searching()) return;
  const std::optional<PlanAnswer> answer = search_.take();
  if (answer) accept(*std::exchange(purpose_, std::nullopt), *answer);
}

void Plans::learn(Followed followed, OnlineReport& report) {
  steps_ += report.time;
  report.planned = followed.plan != nullptr;
  report.matched_calls = static_cast<int64_t>(followed.matched);
  report.planned_calls = static_cast<int64_t>(followed.planned);
  report.unplanned_evictions = followed.unplanned_evictions;
  report.why_not_planned = followed.why_not;
  if (followed.plan || followed.given_up) {
    learn_from_planned(followed.plan ? *followed.plan : *followed.given_up, followed, report);
  } else if (followed.traced && !followed.trace.calls.empty()) {
    learn_from_traced(std::move(followed), report);
  }
  report.planning_time = std::exchange(unreported_, Nanos());
}

void Plans::learn_from_traced(Followed followed, OnlineReport& report) {
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
    if (is_searching()) {
      report.why_not_planned += purpose_->print == seen.print ? ", and the search for it goes on"
                                                              : ", and another search goes on";
    } else if (seen.times >= seen.needed && may_plan()) {
      Purpose purpose{.print = seen.print,
                      .rerun_cost = followed.trace.rerun_cost,
                      .reruns = report.reruns,
                      .smaller = nullptr};
      search(std::move(purpose), std::move(followed.trace), Bytes(0));
    }
  }
}

// If the memory of the plan did not suffice, the trace is planned again with less. If the plan does
// not help, it is dropped.
void Plans::learn_from_planned(const OnlinePlan& plan, const Followed& followed,
                               const OnlineReport& report) {
  const auto kept = row_of(&plan);
  if (kept == kept_.end()) return;
  move_to_front(kept_, kept);
  Kept& row = kept_.front();
  const bool sufficed = followed.unplanned_evictions == 0;
  if (!sufficed && row.attempts < kMostAttempts) {
    if (is_searching()) return;
    if (may_plan()) {
      ++row.attempts;
      row.reserve += Bytes(followed.most_missing);
      return search({.print = row.plan->trace.prints.back(), .smaller = row.plan}, row.plan->trace,
                    row.reserve);
    }
  }
  if (sufficed || (followed.plan && report.reruns <= row.reruns)) return;
  drop(kept_.begin(),
       followed.plan
           ? "the memory of the plan did not suffice, and more was made again than without"
           : "the memory of the plan did not suffice");
}

void Plans::search(Purpose purpose, Trace trace, Bytes reserve) {
  PlanQuestion question{.trace = std::move(trace),
                        .options = {.budget = options_.budget.resolve(Bytes(0)),
                                    .reserve = reserve,
                                    .smallest = options_.smallest.count(),
                                    .time_limit = options_.time_limit}};
  if (!options_.plan_in_background) return accept(purpose, answer_to(question, plan_));
  std::string why_not = search_.begin(std::move(question), plan_);
  if (!why_not.empty()) return accept(purpose, {.why_not = std::move(why_not)});
  purpose_ = std::move(purpose);
}

void Plans::accept(const Purpose& purpose, const PlanAnswer& answer) {
  planning_ += answer.time;
  unreported_ += answer.time;
  if (purpose.smaller) {
    // The plan may have been dropped since.
    const auto kept = row_of(purpose.smaller.get());
    if (kept != kept_.end() && answer.plan) kept->plan = answer.plan;
    return;
  }
  Seen& seen = this->seen(purpose.print);
  if (!answer.plan) {
    seen.why_not = answer.why_not;
    return;
  }
  if (answer.plan->planned_cost > kMostCost * purpose.rerun_cost) {
    seen.why_not = "the best plan found makes more again than evictions without a plan";
    return;
  }
  // If it has to make room for others, it is not planned again and again.
  seen.needed = 2 * std::max(seen.needed, seen.times);
  if (std::ssize(kept_) == options_.plans) kept_.pop_back();
  kept_.insert(kept_.begin(), {.plan = answer.plan, .reruns = purpose.reruns});
}

void Plans::drop(std::vector<Kept>::iterator row, std::string why_not) {
  seen(row->plan->trace.prints.back()).why_not = std::move(why_not);
  kept_.erase(row);
}

void Plans::drop(const OnlinePlan& plan) {
  const auto kept = row_of(&plan);
  if (kept == kept_.end()) return;
  drop(kept, "a step failed in which the memory of the plan did not suffice");
}

}  // namespace reprise::runtime::internal::online
