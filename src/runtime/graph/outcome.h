// These are the outcomes of a captured step: one for each list of numbers that the step was found
// to read on the host. Branches and sizes depend on these numbers, so each outcome has operations
// and a plan of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "reprise/run/interpreter.h"
#include "runtime/arena/step_memory.h"
#include "runtime/graph/captured.h"
#include "runtime/graph/placed_step.h"
#include "runtime/graph/step_search.h"
#include "runtime/step/host_reads.h"
#include "runtime/transfer/carrier.h"

namespace reprise::runtime::internal::graph {

struct Outcome {
  int64_t number = 0;  // how many captures there were with this one
  std::unique_ptr<Captured> captured;
  std::vector<step::HostRead> reads;
  PlacedStep placed = {};                  // for the plan in force; `graph.fixed` as it was planned
  std::optional<StepPlan> plan;            // the plan in force, with its sums (link.h)
  std::shared_ptr<const Program> program;  // of that plan
  transfer::Carriers carriers;  // of that plan, but for a memory behind the device
  // The last run found so many bytes live beside those that were live when the outcome was planned.
  Bytes drift;
  // The plan's peak on this rank. It may be lower than that of the graph, whose numbers are the
  // largest ones of all ranks.
  Bytes own_peak;
  // The plan's peaks of CaptureOptions::other_devices, and how many operations run there.
  std::vector<OtherDeviceReport> other_devices = {};
  int64_t runs = 0;      // number of runs so far
  int64_t compared = 0;  // the run that lockstep has compared last, counted from 1
  int placements = 0;    // number of attempts to place since the user asked for the plan
  // If true, the last attempt failed, and the next run begins with another plan.
  bool crowded = false;
  arena::StepMemory memory = {};  // of the plan in force, while another outcome is in front

  // Says in words what has changed since the capture. The text is empty if nothing has.
  std::string difference(const step::Circumstances& now) const;
};

// Says whether the step may go on as `other` where a replay of `tried` missed. The reads before the
// miss gave both the same numbers.
bool may_follow(const Outcome& other, const Outcome& tried, const step::ReadMiss& miss);

// Outcomes are kept with the one that ran last in front. There is at least one after capture, and none before the
// first run of a followed step.
class Outcomes {
 public:
  bool empty() const { return all_.empty(); }
  Outcome& front() { return all_.front(); }
  const Outcome& front() const { return all_.front(); }
  const std::vector<Outcome>& all() const { return all_; }

  // Brings the outcome with this number to the front.
  void bring(int64_t number);

  // Forgets all outcomes and keeps this one.
  void reset(Outcome only);
  // Adds an outcome in front. Drops an outcome with the same reads, unless it is `beside` it. If there are then more than
  // `most` outcomes, the outcome that ran least recently is dropped.
  void add(Outcome outcome, int most, bool beside = false);
  // Drops the outcome in front. There must be other outcomes.
  void drop_front() { all_.erase(all_.begin()); }
  // Brings an outcome to the front that may follow after the miss, whose circumstances are `now`,
  // and that is not among `tried`. Returns false if there is none.
  bool bring(const step::ReadMiss& miss, const step::Circumstances& now,
             const std::set<int64_t>& tried);
  // Lets all outcomes be planned anew before they run, except the one in front.
  void drop_other_plans();

 private:
  std::vector<Outcome> all_;
};

}  // namespace reprise::runtime::internal::graph
