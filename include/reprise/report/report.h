// report_html() shows a plan as one page: a self-contained HTML file. The page needs no network and
// no other file, and can be read without scripts. Docs: docs/report.md.
//
// The page shows memory over the step beside plain training's, the runs on the time axis, and the
// time of every budget. It shows what was decided about each operation and why, what a run
// measured, and where each block stands in memory. Everything is computed again from the problem
// and the plan. verify() checks the claims of the plan, and the page of an invalid plan says so at
// its top.
//
// Sizes are bounded. If a step has more runs than a picture can show, columns of time stand for the
// runs. Tables keep the rows that matter most and sum up the rest, and the page says so. A graph of
// 10,000 operations makes a page below 3 MB.
//
// Names from files are escaped, and the page forbids every script but its own.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "reprise/io/json.h"
#include "reprise/model/frontier.h"
#include "reprise/model/machine.h"
#include "reprise/model/plan.h"
#include "reprise/model/runlog.h"
#include "reprise/plan/plan.h"
#include "reprise/report/compared.h"

namespace reprise {

// Times of a planned step and of plain training's, measured in turn.
struct SideBySide {
  Nanos plain, planned;

  bool operator==(const SideBySide&) const = default;
};

// ReportNotes are a part of the page that the caller writes: a table of names and texts.
struct ReportNotes {
  std::string title = {};
  std::string about = {};  // a sentence below the title
  std::vector<std::pair<std::string, std::string>> rows = {};

  bool operator==(const ReportNotes&) const = default;
};

struct ReportInput {
  Problem problem;
  Plan plan;
  std::optional<Frontier> frontier = {};     // the curve; see add_curves()
  std::vector<FrontierPoint> periodic = {};  // periodic checkpoints, to compare with
  std::vector<ComparedCurve> compared = {};  // other curves to compare with
  std::optional<RunLog> run_log = {};        // what a run measured
  std::optional<SideBySide> side_by_side = {};
  Machine machine = {};                 // of a plan that moves values
  std::vector<ReportNotes> notes = {};  // stand behind all other parts of the page
};

// Throws InputError unless the curve belongs to this problem.
void validate(const Frontier& frontier, const Problem& problem);

// Fills in `frontier` if it is missing, and for a chain `periodic` if it is empty. It takes about
// the time limit of `options`. The curve of a chain is exact. If an exact curve takes longer, it is
// left out, or consists of single budgets. The curve of a graph consists of plans that the search
// finds in that time, and of the plan of `input`. So does a curve on a machine with channels. Half
// of the time then goes to `compared` if it is empty, and `periodic` stays empty. Throws what
// frontier() throws.
void add_curves(ReportInput& input, const PlanOptions& options);

// Throws InputError if the plan cannot be run on the problem at all (simulate()), or if the
// frontier or the run log belongs to another problem or plan.
std::string report_html(const ReportInput& input);

// Returns a trace in Chrome's trace event format (JSON), which Perfetto and chrome://tracing open.
// The trace has a track of the planned runs, a track of the measured runs if there is a run log,
// and the bytes of each kind as a counter. Throws as report_html() does.
std::string chrome_trace(const ReportInput& input);

// Returns PyTorch's memory snapshot (a pickle of protocol 4), for pytorch.org/memory_viz and
// torch.cuda._memory_viz. The snapshot shows the blocks of the plan in one segment, placed by
// pack(). The operation that made a block stands in the place of a stack trace. Throws as
// plan_blocks() and pack() do. Throws InputError if the plan needs 2^52 bytes or more, because the
// viewer's numbers do not hold them.
std::string memory_snapshot(const ReportInput& input);

}  // namespace reprise
