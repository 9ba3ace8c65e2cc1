// Measures a sequence of stages into a chain: times from several runs, bytes exactly.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "reprise/model/observer.h"
#include "reprise/model/profile.h"
#include "reprise/runtime/alternatives.h"
#include "reprise/runtime/busy_machine.h"
#include "reprise/runtime/stage.h"

namespace reprise::runtime {

// Turns the last stage's outputs into the loss, a tensor of one element. The runtime calls it with
// gradients enabled. Its own memory (log-probabilities, masks, ...) is part of the budget.
using Loss = std::function<at::Tensor(const Tensors& outputs)>;

struct MeasureOptions {
  // Each time is the median of at least `min_repeats` runs. More runs follow until `min_time` has
  // passed, at most `max_repeats` in all. On a machine that is busy with other work it is the lower
  // quartile of the runs' processor times instead, and `observer` hears of it.
  int min_repeats = 3;
  int max_repeats = 20;
  Nanos min_time{10'000'000};
  std::string name = "model";  // of the chain
  // True if the caller still holds the output of forward while backward runs (auto y = forward(x);
  // loss = f(y); loss.backward();). The output's bytes are then needed until the end of the step.
  // False if the output dies with the loss (loss = f(forward(x))). True is safe in both cases. Each step finds
  // out whether the output was held, and its predicted peak is that of its own case.
  bool output_held = true;
  // Selects the alternatives for chains that become options of a stage.
  AlternativeOptions alternatives = {};
  Observer observer = {};
};

// Runs every stage forward and backward a few times on `sample`, with one stage in memory at a time
// (the boundaries wait in host memory). Parameters, buffers, gradients and random state are left as
// they were. The counting allocator is installed when the model is on the CPU.
//
// Sizes are exact for these shapes, this number of threads and this LibTorch. Throws InputError
// with the name of the stage when a stage fails or cannot be used.
Profile profile(const std::vector<Stage>& stages, const Tensors& sample, const Loss& loss,
                const MeasureOptions& options = {});

}  // namespace reprise::runtime
