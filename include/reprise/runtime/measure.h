// Measure a sequence of stages into a chain: times by median, bytes exactly.
#pragma once

#include <functional>
#include <vector>

#include "reprise/model/observer.h"
#include "reprise/model/profile.h"
#include "reprise/runtime/alternatives.h"
#include "reprise/runtime/stage.h"

namespace reprise::runtime {

// What the last stage's outputs cost to turn into one number. Called with gradients enabled; returns a
// tensor of one element. Its own memory (log-probabilities, masks, ...) is part of the budget.
using Loss = std::function<at::Tensor(const Tensors& outputs)>;

struct MeasureOptions {
  // Each time is the median of at least `min_repeats` runs; more until `min_time` has passed.
  int min_repeats = 3;
  int max_repeats = 20;
  Nanos min_time{10'000'000};
  std::string name = "model";  // of the chain
  // Whether the caller still holds what forward returned while backward runs (auto y = forward(x); loss =
  // f(y); loss.backward();), so that its bytes are needed until the end of the step. False: the output dies
  // with the loss (loss = f(forward(x))). True is safe for both; then an output that dies earlier
  // makes the measured peak smaller than the predicted one.
  bool output_held = true;
  // Which ways to keep less for its backward become options of a stage: those of alternatives() that are for chains.
  AlternativeOptions alternatives = {};
  Observer observer = {};
};

// Runs every stage forward and backward a few times on `sample`, one stage in memory at a time (the
// boundaries wait in host memory). Parameters, buffers, gradients and random state are left as they
// were. Installs the counting allocator when the model is on the CPU.
//
// Sizes are exact for these shapes, this thread count and this LibTorch. Throws InputError when a stage
// fails or cannot be used, naming it.
Profile profile(const std::vector<Stage>& stages, const Tensors& sample, const Loss& loss,
                const MeasureOptions& options = {});

}  // namespace reprise::runtime
