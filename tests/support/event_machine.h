// This is an event-driven machine that executes plans with copies: devices and channels that act
// when what they wait for has happened. It holds physical bytes: a copy takes its bytes where it
// goes when it starts, and a free gives bytes back when its memory gets there. Times are those of
// the problem or random ones. It is the oracle for the max/plus time of simulate() and verify(),
// and for their promise that bytes never exceed what the order of the actions says. It takes valid
// plans only.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "reprise/model/graph.h"
#include "reprise/model/machine.h"
#include "reprise/model/plan.h"

namespace reprise::testing {

struct EventResult {
  int64_t time = 0;            // when the last device is done
  std::vector<int64_t> peaks;  // physical bytes, by memory
};

// Returns the duration of an action of the plan, given the usual one.
using Duration = std::function<int64_t(size_t action, int64_t usual)>;

EventResult run_events(
    const Graph& graph, const Machine& machine, const std::vector<Action>& actions,
    const Duration& duration = [](size_t, int64_t usual) { return usual; });

}  // namespace reprise::testing
