// A Walk is a list of actions as pictures need it: when each run happens, what it is for, and who
// holds bytes meanwhile.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "reprise/check/simulate.h"
#include "reprise/model/graph.h"
#include "reprise/model/plan.h"

namespace reprise::report {

// Holding says what bytes are for, from the bottom of a stack to its top.
enum class Holding { kFixed, kInput, kState, kGradient, kActivation, kSaved, kWorkspace };
inline constexpr size_t kHoldings = 7;
const char* to_string(Holding holding);  // "fixed", "input", ...; also the name of its colour
Holding holding_of(ValueKind kind);

enum class Purpose { kForward, kLoss, kRecompute, kBackward };
inline constexpr size_t kPurposes = 4;
const char* to_string(Purpose purpose);

// A RunSpan is the time of one run.
struct RunSpan {
  int64_t action = 0;  // position in the list
  OpIndex op = 0;
  int32_t variant = 0;
  Purpose purpose = Purpose::kForward;
  double start = 0, end = 0;  // see Walk::timed
  std::array<Bytes, kHoldings> held;

  Bytes total() const;
};

struct Walk {
  std::vector<RunSpan> spans;  // one per run on the first device, in order
  // One per run on another device, in the order of the plan. These hold no bytes of the first
  // memory, so that `held` is empty.
  std::vector<RunSpan> elsewhere;
  std::vector<double> clock;  // begin of action k; one more: the end
  // The clock counts nanoseconds. If all times are zero it counts runs instead, so that there is
  // something to see.
  bool timed = true;
  size_t peak = 0;  // position in `spans` of the first of the highest
  Timeline timeline;

  double end() const { return clock.back(); }
};

// Throws as simulate() does. O(actions * values per action).
Walk walk(const Graph& graph, const std::vector<Action>& actions, const Machine& machine = {});

// Returns at most `columns` spans. If there are more, the step is cut into that many columns of
// equal length, and the span with the most bytes stands for its column. Peaks stay.
std::vector<RunSpan> thinned(const Walk& walk, size_t columns);

}  // namespace reprise::report
