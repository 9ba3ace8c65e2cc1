// A Graph lists the ops of one training step, in the order of plain training, and the values
// between them. Planners, the simulator, the verifier and the interpreter all work on it. A Chain
// is a compact way to write a graph.
//
// Ids name values, ops and choices in files, plans and messages. No code takes an id apart: what a
// program needs to know about an op or a realization is a field of it. (Reports put ids together
// that differ in numbers only.)
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "reprise/model/chain.h"
#include "reprise/model/units.h"

namespace reprise {

using ValueIndex = int32_t;  // the position of a value in Graph::values
using OpIndex = int32_t;     // the position of an op in Graph::ops

enum class ValueKind {
  kInput,  // The caller owns the value. It is live from the start, and no plan frees it at home.
  kActivation,  // A forward op computes the value.
  kSaved,       // An op keeps the value for its backward.
  kGradient,    // A backward op computes the value.
  kState,       // The value is state, such as a parameter that an update replaces.
};

// A Value is a piece of data that ops read and write.
struct Value {
  std::string id;
  Bytes bytes;
  ValueKind kind = ValueKind::kActivation;
  // The memory (model/machine.h) where an input is when the step begins, and a result when it ends. An
  // empty text stands for the device; only inputs and results have another home. An input that lives
  // elsewhere stays there. A plan copies it to the device before it is read, and frees it on the
  // device. A result that lives elsewhere is copied there, and freed on the device. A plan that never
  // copies the value leaves it on the device all the time (as_placed(), model/plan.h).
  //
  // State that an op changes is two values: the input that the op reads, and the result whose memory on
  // the device is that of the input (Variant::reuses).
  std::string home = {};

  bool operator==(const Value&) const = default;
};

// Says whether the value is on the device when the step begins.
inline bool starts_on_device(const Value& value) {
  return value.kind == ValueKind::kInput && value.home.empty();
}

enum class Phase { kForward, kLoss, kBackward };

// A Role says which runs of an op a variant may serve. The re-runs of a batch norm, for example,
// use a variant that leaves the running statistics alone.
enum class Role { kAny, kFirst, kReplay };

// A Variant is one way to run an op.
struct Variant {
  std::string name = "default";
  Nanos time;
  Bytes workspace;
  std::vector<ValueIndex> reads;
  std::vector<ValueIndex> writes;
  // Each pair is (written, read). The written value takes over the memory of the read value, which
  // has the same size and is gone afterwards. An input is never reused, unless its home is elsewhere.
  std::vector<std::pair<ValueIndex, ValueIndex>> reuses;
  // The op reads these values and gives them back itself. They are gone at its end and are not
  // counted while it runs; `workspace` is then what the op needs above the level at its end. An
  // input is never consumed.
  std::vector<ValueIndex> consumes;
  Role role = Role::kAny;
  Exactness exactness = Exactness::kBitwise;
  std::string alternative = {};  // the alternative that added the variant; empty for the others
  // An approximate variant bounds the error of an element that it writes, over the largest element,
  // in parts per million, for the data that it was measured on. 0 stands for no known bound.
  int64_t error_ppm = 0;
  // The memory of the machine where the variant runs, reads and writes (model/machine.h). An empty
  // text stands for the first memory, where plain training runs.
  std::string at = {};

  bool operator==(const Variant&) const = default;
};

// An Op is a unit of work that a plan runs once or several times.
struct Op {
  std::string id;
  Phase phase = Phase::kForward;
  bool once = false;    // The op runs exactly once, as all ops of loss and backward do.
  bool random = false;  // A re-run must see the random state of the first run.
  std::vector<Variant> variants;
  std::string owner = {};  // the path of the module that has the op ("blocks.0.mlp"), or empty

  bool operator==(const Op&) const = default;
};

// A Realization is one set of ops that does the work of a choice.
struct Realization {
  std::string name = {};  // the alternative that added it; empty for plain training's
  std::vector<OpIndex> ops = {};

  bool operator==(const Realization&) const = default;
};

// A Choice is work that several realizations can do. A plan runs all ops of exactly one of them and
// no op of the others. The first realization is plain training's. Names may repeat.
struct Choice {
  std::string id;
  std::vector<Realization> realizations;

  bool operator==(const Choice&) const = default;
};

struct Graph {
  std::string name;
  Bytes fixed;  // bytes that are held during the whole step: parameters, optimizer state
  std::vector<Value> values;
  std::vector<Op> ops;  // in the order of plain training
  std::vector<Choice> choices;
  std::vector<ValueIndex> results;  // These values must be live at the end.

  bool operator==(const Graph&) const = default;
};

// Says whether values live in other memories than the device between steps.
bool has_homes(const Graph& graph);

// Returns the graph of the same step where these values live on the device. `values` says so of each value.
// State that an op changes keeps the memory of its input, and its result has no bytes of its own. An op
// gives no input back that lives on the device.
Graph with_on_device(const Graph& graph, const std::vector<char>& values);
// Does so with all values, as in plain training.
Graph with_all_on_device(const Graph& graph);

// Throws InputError unless ids are unique and not empty, indices are in range, every value that is
// read is an input or written by an earlier op, the lists of reuses and consumes fit the reads and
// writes, only inputs and results have a home, choices are disjoint, and the sums of all sizes and of all times fit 64 bits. The cost is
// O(values + ops).
void validate(const Graph& graph);

// Returns the position of the op that has this id, or -1 if there is none. The cost is O(ops).
OpIndex find_op(const Graph& graph, std::string_view id);

const char* to_string(ValueKind kind);  // "input", "activation", ...
const char* to_string(Phase phase);     // "forward", "loss", "backward"
const char* to_string(Role role);       // "any", "first", "replay"

}  // namespace reprise
