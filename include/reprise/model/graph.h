// The one intermediate form: operations over values, in the order of plain training. Planners,
// simulator, verifier and interpreter all work on it; a Chain is a compact way to write one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "reprise/model/chain.h"
#include "reprise/model/units.h"

namespace reprise {

using ValueIndex = int32_t;  // position in Graph::values
using OpIndex = int32_t;     // position in Graph::ops

enum class ValueKind {
  kInput,       // the caller's: live from the start, never freed by a plan
  kActivation,  //
  kSaved,       // what an operation keeps for its backward
  kGradient,    //
  kState,       //
};

struct Value {
  std::string id;
  Bytes bytes;
  ValueKind kind = ValueKind::kActivation;

  bool operator==(const Value&) const = default;
};

enum class Phase { kForward, kLoss, kBackward };

// Which runs of an operation a variant may serve: a batch norm's replay leaves its statistics alone.
enum class Role { kAny, kFirst, kReplay };

// One way to run an operation.
struct Variant {
  std::string name = "default";
  Nanos time;
  Bytes workspace;
  std::vector<ValueIndex> reads;
  std::vector<ValueIndex> writes;
  // (written, read): the written value takes over the memory of the read one, of equal size, which is
  // then gone. Never an input value.
  std::vector<std::pair<ValueIndex, ValueIndex>> reuses;
  // Values read that the operation itself gives back: gone at its end and not counted while it runs;
  // `workspace` is then what it needs above the level at its end. Never an input value.
  std::vector<ValueIndex> consumes;
  Role role = Role::kAny;
  Exactness exactness = Exactness::kBitwise;

  bool operator==(const Variant&) const = default;
};

struct Op {
  std::string id;
  Phase phase = Phase::kForward;
  bool once = false;    // runs exactly once (collectives, effects); loss and backward always do
  bool random = false;  // a re-run must see the random state of the first run
  std::vector<Variant> variants;

  bool operator==(const Op&) const = default;
};

// Several realizations of the same work; a plan runs all ops of exactly one of them. The first is
// plain training's.
struct Choice {
  std::string id;
  std::vector<std::vector<OpIndex>> realizations;

  bool operator==(const Choice&) const = default;
};

// How a realization other than the first is called. Ids that name theirs end in one name for each of them:
// "conv.backward/two-call-convolution/late-gradient". Where there are fewer, those before share the first one.
std::string_view name_of(const Choice& choice, size_t realization);

struct Graph {
  std::string name;
  Bytes fixed;
  std::vector<Value> values;
  std::vector<Op> ops;  // in the order of plain training
  std::vector<Choice> choices;
  std::vector<ValueIndex> results;  // live at the end

  bool operator==(const Graph&) const = default;
};

// Throws InputError unless ids are unique and not empty, indices are in range, every read value is an
// input or written by an earlier operation, reuse and consume lists fit their reads and writes, choices
// are disjoint, and the sums of all sizes and times fit 64 bits.
void validate(const Graph& graph);

// Cost O(number of values + ops).
const char* to_string(ValueKind kind);  // "input", "activation", ...
const char* to_string(Phase phase);     // "forward", "loss", "backward"
const char* to_string(Role role);       // "any", "first", "replay"

}  // namespace reprise
