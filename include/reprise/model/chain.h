// A chain of stages: the model of "Optimal checkpointing for heterogeneous chains" (Beaumont et al.),
// generalised to several options a stage, backward passes that do not read the stage's input or
// output, gradients apart from activations, and weight gradients. A compact way to write a Graph;
// lower() (model/lower.h) turns it into one.
//
// Stages 0..L-1 stand between boundaries 0..L: stage i reads the activation x_i and writes x_{i+1}; its
// backward reads the gradient g_{i+1} and writes g_i and its weight gradients w_i. The loss reads x_L
// and writes g_L. All sizes are bytes of device memory, all times nanoseconds.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "reprise/model/units.h"

namespace reprise {

// How the result of one way to run something relates to plain training's.
enum class Exactness { kBitwise, kRounding, kApproximate };

// What one run costs: its time, and the bytes it needs beyond what it reads and writes.
struct Cost {
  Nanos time;
  Bytes workspace;

  bool operator==(const Cost&) const = default;
};

// One way to run a stage so that its backward can run later ("keep" in plain training).
struct StageOption {
  std::string name = "keep";  // unique in its stage, not empty, not "fast"
  Bytes saved;                // kept for the backward; counts neither the stage's input nor its output
  bool reads_input = true;    // the backward reads x_i
  bool reads_output = true;   // the backward reads x_{i+1}
  // The backward itself gives back what it reads last (g_{i+1}, the saved bytes, and x_{i+1} if it reads
  // it), as autograd does while it walks a stage. These bytes are then not counted while it runs, and
  // backward.workspace is what it needs above the level at its end.
  bool consumes = false;
  // x_i is given back in the same way, by the backward, or where that does not read it, by the forward of this
  // option. Nothing else may read it later: the stage is not the first, and no option of the one before
  // reads its output.
  bool consumes_input = false;
  Cost forward;
  Cost backward;
  Exactness exactness = Exactness::kBitwise;

  bool operator==(const StageOption&) const = default;
};

struct Stage {
  std::string name;
  Bytes output;                           // x_{i+1}
  std::optional<Bytes> output_gradient;   // g_{i+1}; as large as the output when absent
  Bytes weight_gradient;                  // w_i
  bool random = false;                    // a re-run must see the random state of the first run
  Cost forward;                           // "fast": keeps nothing for the backward
  std::vector<StageOption> options;       // at least one; the first is plain training's

  bool operator==(const Stage&) const = default;
};

struct ChainInput {
  Bytes bytes;     // x_0: the caller's, live all through
  Bytes gradient;  // g_0

  bool operator==(const ChainInput&) const = default;
};

struct ChainLoss {
  Cost cost;
  bool consumes = false;  // gives back x_L itself; only where no option of the last stage reads it

  bool operator==(const ChainLoss&) const = default;
};

struct Chain {
  std::string name;
  Bytes fixed;  // resident all through: parameters, optimizer state, the caller's other tensors
  ChainInput input;
  std::vector<Stage> stages;
  ChainLoss loss;

  bool operator==(const Chain&) const = default;
};

// x_k, g_k of boundary k in 0..L.
Bytes boundary_bytes(const Chain& chain, size_t boundary);
Bytes boundary_gradient_bytes(const Chain& chain, size_t boundary);

// Throws InputError (with a JSON pointer) unless the chain is well formed: at least one stage, options
// with unique legal names, no negative number, nothing given back that is read later, and sums of all
// sizes and times that fit 64 bits.
void validate(const Chain& chain);

// The chain without the options that are less exact than `allowed`. Throws InputError if a stage loses
// every option.
Chain restrict_exactness(const Chain& chain, Exactness allowed);

const char* to_string(Exactness exactness);  // "bitwise", "rounding", "approximate"

}  // namespace reprise
