// A Chain is a list of stages. It follows the model of "Optimal checkpointing for heterogeneous
// chains" (Beaumont et al.), and it adds several options for a stage, backwards that do not read
// the stage's input or output, gradients whose sizes differ from the activations', and weight
// gradients. A chain is a compact way to write a Graph; lower() (model/lower.h) turns it into one.
//
// Stages 0..L-1 stand between boundaries 0..L. Stage i reads the activation x_i and writes x_{i+1}.
// Its backward reads the gradient g_{i+1} and writes g_i and the stage's weight gradients w_i. The
// loss reads x_L and writes g_L. All sizes are bytes of device memory, and all times are
// nanoseconds.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "reprise/model/units.h"

namespace reprise {

// An Exactness says how close the numbers of a variant or an option are to plain training's.
enum class Exactness { kBitwise, kRounding, kApproximate };

// A Cost is the time of one run, and the bytes that it needs beyond what it reads and writes.
struct Cost {
  Nanos time;
  Bytes workspace;

  bool operator==(const Cost&) const = default;
};

// A StageOption is a way to run a stage so that its backward can follow. Plain training's is often
// "keep".
struct StageOption {
  std::string name = "keep";  // The name is unique in its stage, not empty, and not "fast".
  Bytes saved;  // the bytes kept for the backward, without the stage's input and its output
  bool reads_input = true;   // The backward reads x_i.
  bool reads_output = true;  // The backward reads x_{i+1}.
  // The backward itself gives back what it reads last (g_{i+1}, the saved bytes, and x_{i+1} if it
  // reads x_{i+1}), as autograd does while it walks a stage. These bytes are then not counted while
  // it runs, and backward.workspace is what it needs above the level at its end.
  bool consumes = false;
  // The backward also gives back x_i. If the backward does not read x_i, the forward of this option
  // gives it back. Nothing else may read x_i later: the stage is not the first, and no option of
  // the stage before reads its own output.
  bool consumes_input = false;
  Cost forward;
  Cost backward;
  // The forward of a re-run right before the backward. It stops early: it makes the saved bytes
  // and leaves out all that only x_{i+1} needs. It takes no more time or memory than `forward`.
  // Nothing if there is no such run, as where the backward reads x_{i+1}.
  std::optional<Cost> stopped = {};
  Exactness exactness = Exactness::kBitwise;

  bool operator==(const StageOption&) const = default;
};

// A Stage is a part of a model that is kept or recomputed as a whole.
struct Stage {
  std::string name;
  Bytes output;                          // the size of x_{i+1}
  std::optional<Bytes> output_gradient;  // the size of g_{i+1}; without it, the size of the output
  Bytes weight_gradient;                 // the size of w_i
  bool random = false;                   // A re-run must see the random state of the first run.
  Cost forward;                          // the cost of "fast", which keeps nothing for the backward
  std::vector<StageOption> options;      // There is at least one; the first is plain training's.

  bool operator==(const Stage&) const = default;
};

struct ChainInput {
  Bytes bytes;     // the size of x_0, which the caller owns and which is live during the whole step
  Bytes gradient;  // the size of g_0

  bool operator==(const ChainInput&) const = default;
};

struct ChainLoss {
  Cost cost;
  bool consumes = false;  // The loss gives back x_L. No option of the last stage may read x_L then.

  bool operator==(const ChainLoss&) const = default;
};

struct Chain {
  std::string name;
  Bytes fixed;  // held during the whole step: parameters, optimizer state, the caller's tensors
  ChainInput input;
  std::vector<Stage> stages;
  ChainLoss loss;

  bool operator==(const Chain&) const = default;
};

// Returns the name of the run of an option that stops early: "<option>+stop".
std::string stopped_name(const StageOption& option);

// Return the sizes of x_k and of g_k, for boundary k in 0..L.
Bytes boundary_bytes(const Chain& chain, size_t boundary);
Bytes boundary_gradient_bytes(const Chain& chain, size_t boundary);

// Throws InputError, with a JSON pointer, unless the chain is well formed: it has at least one
// stage, the names of options are legal and unique, no number is negative, nothing is given back
// that is read later, and the sums of all sizes and of all times fit 64 bits.
void validate(const Chain& chain);

// Returns the chain without the options that are less exact than `allowed`. Throws InputError if a
// stage loses every option.
Chain restrict_exactness(const Chain& chain, Exactness allowed);

const char* to_string(Exactness exactness);  // "bitwise", "rounding", "approximate"

}  // namespace reprise
