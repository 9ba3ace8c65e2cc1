// Each planner has one row, which says what the tests that run on every planner may expect of it.
#pragma once

#include <span>
#include <vector>

namespace reprise::testing {

struct PlannerRow {
  const char* name;
  bool chains;               // plans chains
  bool graphs;               // plans graphs
  bool curve;                // has a chain frontier
  bool optimal;              // every plan is the best of its schedule class
  bool graph_curve = false;  // has a graph frontier
  bool joins = false;        // plans joins
  bool pipelines = false;    // plans pipelines
  bool reports = true;       // false: is done before its observer could be told anything
  int fewer = 1;  // Its tests on random graphs take this part of them: without a machine it is
                  // another planner of the matrix.
};

constexpr PlannerRow pipeline_row(const char* name) {
  return {.name = name,
          .chains = false,
          .graphs = false,
          .curve = false,
          .optimal = false,
          .pipelines = true};
}

inline std::span<const PlannerRow> planner_matrix() {
  static constexpr PlannerRow kRows[] = {
      pipeline_row("1f1b"),
      pipeline_row("adapipe"),
      {.name = "block4", .chains = true, .graphs = false, .curve = false, .optimal = false},
      {.name = "chain", .chains = true, .graphs = false, .curve = true, .optimal = true},
      {.name = "chain_slots", .chains = true, .graphs = false, .curve = false, .optimal = false},
      pipeline_row("cheapest_stages"),
      {.name = "devices",
       .chains = false,
       .graphs = true,
       .curve = false,
       .optimal = false,
       .fewer = 10},
      {.name = "double_checkpoint",
       .chains = true,
       .graphs = false,
       .curve = false,
       .optimal = false},
      {.name = "dtr", .chains = false, .graphs = true, .curve = false, .optimal = false},
      {.name = "floating", .chains = true, .graphs = false, .curve = false, .optimal = true},
      pipeline_row("gpipe"),
      {.name = "graph",
       .chains = false,
       .graphs = true,
       .curve = false,
       .optimal = false,
       .graph_curve = true},
      {.name = "graph_levels",
       .chains = false,
       .graphs = true,
       .curve = false,
       .optimal = false,
       .fewer = 10},
      pipeline_row("interleaved"),
      {.name = "join",
       .chains = false,
       .graphs = false,
       .curve = false,
       .optimal = true,
       .joins = true},
      {.name = "keep_all",
       .chains = true,
       .graphs = true,
       .curve = true,
       .optimal = false,
       .reports = false},
      {.name = "levels", .chains = true, .graphs = false, .curve = false, .optimal = false},
      {.name = "min_peak", .chains = true, .graphs = false, .curve = true, .optimal = true},
      // Without a machine, offload_only and save_on_cpu are plain training.
      {.name = "offload_only",
       .chains = true,
       .graphs = false,
       .curve = false,
       .optimal = false,
       .reports = false},
      {.name = "periodic", .chains = true, .graphs = false, .curve = true, .optimal = false},
      pipeline_row("pipeline"),
      {.name = "pofo", .chains = true, .graphs = false, .curve = false, .optimal = false},
      {.name = "revolve", .chains = true, .graphs = false, .curve = true, .optimal = false},
      {.name = "save_on_cpu",
       .chains = true,
       .graphs = false,
       .curve = false,
       .optimal = false,
       .reports = false},
      pipeline_row("zb_h1"),
  };
  return kRows;
}

inline std::vector<PlannerRow> chain_planner_rows() {
  std::vector<PlannerRow> rows;
  for (const PlannerRow& row : planner_matrix()) {
    if (row.chains) rows.push_back(row);
  }
  return rows;
}

inline std::vector<PlannerRow> graph_planner_rows() {
  std::vector<PlannerRow> rows;
  for (const PlannerRow& row : planner_matrix()) {
    if (row.graphs) rows.push_back(row);
  }
  return rows;
}

}  // namespace reprise::testing
