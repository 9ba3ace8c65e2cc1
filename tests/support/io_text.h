// Tests of readers use these small files of every format.
#pragma once

#include <string>

namespace reprise::testing {

// The tests that use this text depend on its line numbers.
inline const std::string kChainText = R"({
  "format": "reprise.chain",
  "version": 1,
  "name": "two",
  "input": {"bytes": 10},
  "stages": [
    {
      "name": "first",
      "output_bytes": 20,
      "forward": {"ns": 10},
      "options": [
        {"name": "keep", "saved_bytes": 7, "forward": {"ns": 11}, "backward": {"ns": 30}},
        {"name": "lean", "saved_bytes": 3, "forward": {"ns": 12}, "backward": {"ns": 33}}
      ]
    },
    {
      "name": "second",
      "output_bytes": 30,
      "forward": {"ns": 20, "workspace_bytes": 4},
      "options": [
        {"name": "keep", "saved_bytes": 9, "forward": {"ns": 21}, "backward": {"ns": 40}}
      ]
    }
  ],
  "loss": {"ns": 5}
}
)";

inline const std::string kGraphText = R"({
  "format": "reprise.graph",
  "version": 1,
  "name": "small",
  "values": [
    {"id": "x", "bytes": 8, "kind": "input"},
    {"id": "y", "bytes": 8},
    {"id": "z", "bytes": 8, "kind": "gradient"}
  ],
  "ops": [
    {"id": "f", "variants": [{"ns": 1, "reads": ["x"], "writes": ["y"]}]},
    {"id": "b", "phase": "backward",
     "variants": [{"ns": 2, "reads": ["y"], "writes": ["z"], "reuses": [["z", "y"]]}]}
  ],
  "results": ["z"]
}
)";

// This graph has version 2, with owners, a variant of an alternative, and realizations with names.
inline const std::string kOwnedGraphText = R"({
  "format": "reprise.graph",
  "version": 2,
  "name": "owned",
  "values": [
    {"id": "x", "bytes": 8, "kind": "input"},
    {"id": "y", "bytes": 8}
  ],
  "ops": [
    {"id": "f", "owner": "blocks.0", "variants": [{"ns": 3, "reads": ["x"], "writes": ["y"]},
     {"name": "g/x", "alternative": "g", "ns": 4, "reads": ["x"], "writes": ["y"]}]},
    {"id": "f.1", "variants": [{"ns": 5, "reads": ["x"], "writes": ["y"]}]}
  ],
  "choices": [{"id": "f", "realizations": [{"ops": ["f"]}, {"name": "parts", "ops": ["f.1"]}]}],
  "results": ["y"]
}
)";

inline const std::string kPlanText = R"({
  "format": "reprise.plan",
  "version": 1,
  "problem": {"format": "reprise.graph", "name": "small"},
  "planner": "hand",
  "termination": "feasible",
  "schedule_class": "all",
  "budget_bytes": 100,
  "peak_bytes": 16,
  "time_ns": 3,
  "lower_bound_ns": 3,
  "baseline": {"peak_bytes": 16, "time_ns": 3},
  "actions": [
    ["run", "f", "default"],
    ["run", "b", "default"]
  ]
}
)";

inline const std::string kRunLogText = R"({
  "format": "reprise.runlog",
  "version": 1,
  "problem": {"format": "reprise.graph", "name": "small"},
  "device": "cpu",
  "steps": 5,
  "planned": {"peak_bytes": 16, "time_ns": 3},
  "measured": {"peak_bytes": 18, "time_ns": 7},
  "actions": [
    {"action": 0, "op": "f", "variant": "default",
     "planned_bytes": 16, "measured_bytes": 16, "planned_ns": 1, "measured_ns": 2},
    {"action": 1, "op": "b", "variant": "default",
     "planned_bytes": 16, "measured_bytes": 18, "planned_ns": 2, "measured_ns": 4}
  ]
}
)";

// Returns `text` with the first `from` replaced, or the empty string if `from` does not occur: a
// test that meant to damage a file must not pass on an intact one.
inline std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  return at == std::string::npos ? "" : text.replace(at, from.size(), to);
}

}  // namespace reprise::testing
