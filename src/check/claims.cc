#include "check/claims.h"

#include <fmt/format.h>

#include <limits>
#include <string>

#include "reprise/check/simulate.h"
#include "reprise/model/errors.h"

namespace reprise {
namespace {

struct Claim {
  const ReportViolation& report;

  void operator()(bool holds, const char* what, const std::string& message) const {
    if (!holds) report(ViolationKind::kFalseClaim, what, message);
  }
};

void check_baseline(const Graph& graph, const Plan& plan, const Claim& claim) {
  try {
    const Baseline plain = baseline(graph);
    claim(plan.baseline == plain, "baseline",
          fmt::format("claims that plain training needs {} bytes and {} ns; it needs {} and {}",
                      plan.baseline.peak.count(), plan.baseline.time.count(), plain.peak.count(),
                      plain.time.count()));
  } catch (const InputError& error) {
    claim(false, "baseline", fmt::format("no baseline to compare with: {}", error.what()));
  }
}

}  // namespace

int64_t clamp(Wide number) {
  constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();
  return number > kLargest ? kLargest : static_cast<int64_t>(number);
}

void check_claims(const Graph& graph, const Plan& plan, Wide peak, Wide time,
                  const ReportViolation& report) {
  const Claim claim{report};
  claim(plan.peak.count() == peak, "peak_bytes",
        fmt::format("claims a peak of {} bytes; it is {}", plan.peak.count(), clamp(peak)));
  claim(plan.time.count() == time, "time_ns",
        fmt::format("claims a time of {} ns; it is {}", plan.time.count(), clamp(time)));
  claim(plan.budget.count() >= peak, "budget_bytes",
        fmt::format("claims to fit {} bytes; its peak is {}, {} over", plan.budget.count(),
                    clamp(peak), clamp(peak - plan.budget.count())));
  claim(plan.lower_bound.count() <= time, "lower_bound_ns",
        fmt::format("claims that no plan is faster than {} ns; it takes {} itself",
                    plan.lower_bound.count(), clamp(time)));
  const bool no_plan =
      plan.termination == Termination::kInfeasible || plan.termination == Termination::kTimeLimit;
  claim(!no_plan || plan.actions.empty(), "termination",
        fmt::format("claims {}, which has no plan, and has one", to_string(plan.termination)));
  claim(plan.termination != Termination::kOptimal || plan.lower_bound.count() == time,
        "termination",
        fmt::format("claims to be optimal with a lower bound of {} ns and a time of {} ns",
                    plan.lower_bound.count(), clamp(time)));
  check_baseline(graph, plan, claim);
}

}  // namespace reprise
