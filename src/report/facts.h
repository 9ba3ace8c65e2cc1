// Facts are worked out once, and all parts of a report are made from them.
#pragma once

#include <string>
#include <vector>

#include "report/walk.h"
#include "reprise/check/explain.h"
#include "reprise/check/verify.h"
#include "reprise/report/report.h"

namespace reprise::report {

struct Facts {
  // `input` must outlive the facts. Throws as report_html() does.
  explicit Facts(const ReportInput& input);

  const ReportInput& input;
  Graph graph;
  std::vector<std::string> names;  // names of the ops, for people: a chain's with the stage
  Graph plain_graph;               // of plain training, where everything lives on the device
  std::vector<Action> plain_actions;
  Walk plan, plain;
  Explanation explanation;
  std::vector<Violation> violations;

  const RunLog* run_log() const { return input.run_log ? &*input.run_log : nullptr; }
};

// Returns one name for each op: "conv1 (F0)" for stages, and the id otherwise. A name beyond 120
// characters keeps both ends.
std::vector<std::string> op_names(const Problem& problem, const Graph& graph);

}  // namespace reprise::report
