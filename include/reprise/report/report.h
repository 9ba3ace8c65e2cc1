// A plan as one page to look at: a self-contained HTML file that needs no network, no script to be
// read, and no other file. Docs: docs/report.md.
//
// It shows memory over the step beside plain training's, what runs when, the time of every budget, what
// was decided about each operation and why, what a run measured, and where each block stands in memory.
// Everything is worked out again from problem and plan; what the plan claims is checked with verify(), and
// a plan that is not valid says so at the top of its page.
//
// Sizes are bounded: where a step has more runs than a picture can show, columns of time stand for them,
// tables keep the rows that matter most and sum up the rest, and the page says so. A graph of 10,000
// operations makes a page below 3 MB.
//
// Names from files are escaped, and the page forbids itself every script but its own.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "reprise/io/json.h"
#include "reprise/model/frontier.h"
#include "reprise/model/plan.h"
#include "reprise/model/runlog.h"
#include "reprise/plan/plan.h"

namespace reprise {

// Times of a planned step and of plain training's, measured in turn.
struct SideBySide {
  Nanos plain, planned;

  bool operator==(const SideBySide&) const = default;
};

struct ReportInput {
  Problem problem;
  Plan plan;
  std::optional<Frontier> frontier = {};     // the curve; see add_curves()
  std::vector<FrontierPoint> periodic = {};  // of periodic checkpoints, to compare with
  std::optional<RunLog> run_log = {};        // what a run measured
  std::optional<SideBySide> side_by_side = {};
};

// Throws InputError unless the curve is of this problem.
void validate(const Frontier& frontier, const Problem& problem);

// Fills in what is missing of `frontier`, and for a chain of `periodic`, within about the time limit
// of `options`. The curve of a chain is exact; one that takes longer is left out, or consists of
// single budgets. The curve of a graph consists of plans that the search finds in that time, and of
// the plan of `input`. Errors as frontier().
void add_curves(ReportInput& input, const PlanOptions& options);

// Throws InputError if the plan cannot be run on the problem at all (simulate()), or if frontier or run
// log are for another problem or plan.
std::string report_html(const ReportInput& input);

// Chrome's trace event format (JSON), which Perfetto and chrome://tracing open: a track of what runs when,
// one of what was measured if there is a run log, and the bytes of each kind as a counter.
// Errors as report_html().
std::string chrome_trace(const ReportInput& input);

// PyTorch's memory snapshot (a pickle of protocol 4), for pytorch.org/memory_viz and
// torch.cuda._memory_viz: the blocks of the plan in one segment, placed by pack(), with the operation that
// made each in the place of a stack trace. Errors as plan_blocks() and pack(); InputError if the plan
// needs 2^52 bytes or more, which the viewer's numbers do not hold.
std::string memory_snapshot(const ReportInput& input);

}  // namespace reprise
