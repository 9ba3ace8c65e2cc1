// Who holds the bytes at the peak of a plan, what it recomputes, and what that costs.
#pragma once

#include <string>
#include <vector>

#include "reprise/check/simulate.h"
#include "reprise/model/graph.h"
#include "reprise/model/plan.h"

namespace reprise {

struct Holder {
  std::string id;  // value id, "fixed", or "workspace of <op>"
  Bytes bytes;

  bool operator==(const Holder&) const = default;
};

struct Recomputed {
  std::string op;
  int64_t runs = 0;  // two or more
  Nanos extra;       // time of all runs but the first

  bool operator==(const Recomputed&) const = default;
};

// What a plan runs in place of plain training's way: another variant that reads and writes the same, another
// realization of a choice, or another option of a chain's stage.
struct AlternativeUse {
  std::string kind;  // the variant's name up to a "/", name_of() the realization, or the option's name
  int64_t runs = 0;  // of operations, choices or stages that are done this way
  Nanos time;        // of all of them
  Nanos plain_time;  // of plain training's way to do the same
  // The largest difference in what an operation needs; of a choice with what it reads; in what a stage keeps.
  Bytes saved;

  bool operator==(const AlternativeUse&) const = default;
};

struct Explanation {
  Timeline timeline;
  std::string peak_action;             // "run B3 keep", or "start"
  std::vector<Holder> holders;         // at the peak, largest first; they sum to the peak
  std::vector<Recomputed> recomputed;  // most expensive first
  Nanos recomputed_time;
  std::vector<AlternativeUse> alternatives;  // by kind
  Baseline baseline;

  bool operator==(const Explanation&) const = default;
};

// Errors as simulate().
Explanation explain(const Graph& graph, const Plan& plan);

}  // namespace reprise
