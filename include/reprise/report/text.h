// These functions write results as plain text for people: fixed-width tables that fit a terminal,
// with every sum shown. Nothing here prints; the caller decides where the text goes. Control
// characters in names from files are replaced, so that no file can drive a terminal.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "reprise/check/explain.h"
#include "reprise/check/verify.h"
#include "reprise/model/frontier.h"
#include "reprise/plan/plan.h"
#include "reprise/plan/registry.h"
#include "reprise/report/compared.h"

namespace reprise {

struct TextOptions {
  bool color = false;  // ANSI escapes for headings and faults
  size_t rows = 40;    // most rows of a table; the other rows are summed up or counted

  bool operator==(const TextOptions&) const = default;
};

// Says who holds bytes at the peak (largest first, then the rest; the sum is the peak), what is
// recomputed and what that costs. The numbers of plain training stand beside them.
std::string explanation_text(const Explanation& explanation, const TextOptions& options = {});

// Says on one screen how good the plan is, what it costs, and what the search took. The function
// also accepts results without a plan.
std::string plan_text(const PlanResult& result, const TextOptions& options = {});

// Says why there is no plan: the budget, the smallest budget with a plan as far as it is known (in
// bytes as a plain number, and as a share of plain training's peak), and the op that needs it. The
// text is one or two sentences, a line each, without advice: what the user can change depends on
// the caller. `blocking_op` replaces the op's id. `result.plan` must be empty.
std::string explain_no_plan(const PlanResult& result, std::string_view blocking_op = {});

// Writes one row for each point. Long curves are thinned out evenly, and the first and the last
// point are kept. Each of the `compared` curves has a column: its time over plain training's at the
// budget of the row, or "no plan".
std::string frontier_text(const Frontier& frontier, const Baseline& baseline,
                          const TextOptions& options = {},
                          std::span<const ComparedCurve> compared = {});

// Lists all violations; `rows` does not apply.
std::string violations_text(const std::vector<Violation>& violations,
                            const TextOptions& options = {});

std::string planners_text(std::span<const PlannerInfo> planners, const TextOptions& options = {});

// Returns the text with every control character replaced by '?'. Line breaks are replaced too
// unless `lines` is set.
std::string printable(std::string_view text, bool lines = false);

}  // namespace reprise
