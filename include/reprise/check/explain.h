// Explains a plan: which values hold the bytes at its peak, which ops it recomputes, and what these
// cost.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "reprise/check/simulate.h"
#include "reprise/model/graph.h"
#include "reprise/model/plan.h"

namespace reprise {

// A Holder is what holds bytes at the peak.
struct Holder {
  std::string id;  // the id of a value, "fixed", or "workspace of <op>"
  Bytes bytes;

  bool operator==(const Holder&) const = default;
};

// A Recomputed is an op that a plan runs more than once.
struct Recomputed {
  std::string op;
  int64_t runs = 0;  // at least two
  Nanos extra;       // the time of all re-runs
  Bytes bytes = {};  // of the values that the re-runs write
  // The bytes of these values that the device does not hold at the peak. They were dropped before it,
  // and a re-run behind it makes them again.
  Bytes absent = {};
  std::string reader = {};  // the op that first reads what a re-run made; empty if none does

  bool operator==(const Recomputed&) const = default;
};

// An AlternativeUse sums up what a plan runs in one way that is not plain training's: other
// variants that read and write the same, other realizations of choices, or other options of a
// chain's stages.
struct AlternativeUse {
  // The alternative of the variants, the name of the realizations or the name of the options. A
  // variant without an alternative counts under its own name, a realization without a name under
  // its choice's id.
  std::string kind;
  int64_t runs = 0;  // how many ops, choices or stages are done in this way
  Nanos time;        // their time
  Nanos plain_time;  // the time that plain training takes for the same
  // The largest number of bytes that one of them saves. Variants are compared by what a run needs
  // beside what it reads, realizations by what their ops need and read, options by what they keep.
  Bytes saved;
  // The largest Variant::error_ppm of what runs; 0 where nothing is approximate.
  int64_t error_ppm = 0;

  bool operator==(const AlternativeUse&) const = default;
};

// A Moved is a value that a plan sends to another memory and brings back.
struct Moved {
  std::string value;
  std::string memory;  // where it waits
  Bytes bytes;         // of one copy
  int64_t copies = 0;  // out of the device and back
  Nanos waited;        // the time that runs wait for these copies

  bool operator==(const Moved&) const = default;
};

// A ChannelUse sums up what a channel carries in a plan.
struct ChannelUse {
  std::string from, to;  // names of memories
  int64_t copies = 0;
  Bytes bytes = {};
  Nanos busy = {};
  Nanos waited = {};  // the time that runs wait for its copies

  bool operator==(const ChannelUse&) const = default;
};

// A DeviceUse sums up what a device does in a plan.
struct DeviceUse {
  std::string name;
  int64_t runs = 0;
  Nanos busy = {};  // the time of all its runs
  Bytes peak = {};

  bool operator==(const DeviceUse&) const = default;
};

struct Explanation {
  Timeline timeline;
  std::string peak_action;             // "run B3 keep", or "start"
  std::vector<Holder> holders;         // The largest stands first. Their bytes add up to the peak.
  std::vector<Recomputed> recomputed;  // The op with the most extra time stands first.
  Nanos recomputed_time;
  // The most bytes of the device while an op of the loss runs there; nothing without such a run.
  std::optional<Bytes> at_loss = {};
  std::vector<AlternativeUse> alternatives;  // in the order of their kinds
  Baseline baseline;  // nothing where an op of plain training cannot run on the first device
  std::vector<Moved> moved = {};          // The value that the runs wait for longest stands first.
  std::vector<ChannelUse> channels = {};  // of the machine, in its order
  std::vector<DeviceUse> devices = {};    // in the order of the machine; empty if it has only one

  bool operator==(const Explanation&) const = default;
};

// Throws what simulate() throws. The cost is O(actions * values per action + choices).
Explanation explain(const Graph& graph, const Plan& plan, const Machine& machine = {});

}  // namespace reprise
