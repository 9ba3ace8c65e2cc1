// A training step in parts along the batch: gradient accumulation, planned as one step.
//
//   auto part = [&](const Tensors& in, double share) {
//     auto loss = share * torch::nn::functional::cross_entropy(model->forward(in[0]), in[1]);
//     loss.backward();
//     return Tensors{loss};
//   };
//   MicroBatches found = micro_batches(part, {x, y}, {.plan = {.budget = "30%"}});
//   at::Tensor loss = found.step.run({x, y});
//
// With MicroBatchOptions::body only the tail of a step is in parts.
//
// Nothing is computed twice for it, so where the batch is large enough it is the cheapest way to save
// memory. It is another computation than the whole batch at once: sums are rounded in another order, each part
// draws its own random numbers, and a batch norm in training mode sees the rows of its part. The same
// bits as accumulating by hand.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "reprise/runtime/capture.h"

namespace reprise::runtime {

// Forward, loss and backward of some rows of the batch. `share`: these rows over all rows, the factor that
// makes the losses (means over rows) and gradients of all parts add up to those of the batch. What it
// returns is added up over the parts; the loss comes first.
using PartFunction = std::function<Tensors(const Tensors& inputs, double share)>;

// The step that runs `part` on each of `parts` slices along dimension 0: of all inputs that are as long there
// as the first one; the others are given as they are. Slices differ by one row at most. The gradients of
// a part are added to those of the parts before. Throws InputError when there are fewer rows than parts.
StepFunction in_parts(PartFunction part, int64_t parts);

// What the whole batch goes through before it is divided.
using BodyFunction = std::function<Tensors(const Tensors& inputs)>;

// The tail of a step in parts: what `body` returns is divided in place of the inputs (the first of it says how long the
// batch is), and forward and backward of each part run together. Then the backward of the body runs, from the gradients
// of all parts. A batch norm in the body sees the whole batch. In one part it is plain training.
StepFunction in_parts(BodyFunction body, PartFunction part, int64_t parts);

struct MicroBatchOptions {
  // Optional: only what is behind it runs in parts.
  BodyFunction body = {};
  // Tried in ascending order, until two in a row are slower than one before them, or one costs no time at
  // all. Each is captured at the memory that it takes without a plan: leave out what the machine has no room for.
  std::vector<int64_t> parts = {1, 2, 4, 8, 16};
  CaptureOptions capture = {};
  // A share of the budget is of the plain peak with the smallest number of parts. The time limit is for
  // each number.
  StepPlanOptions plan = {};
  // Without a plan for any number: `chosen` without one, in place of a BudgetError. The step has to be planned
  // before it runs then; else it runs as plain training does.
  bool infeasible_is_an_answer = false;
};

struct PartsTried {
  int64_t parts = 1;
  PlanResult result = {};
};

struct MicroBatches {
  CapturedStep step;  // with the fastest plan
  PartsTried chosen;  // what the step is; without a plan: what comes closest to the budget
  std::vector<PartsTried> tried;
};

// Captures and plans the step with each number of parts. Throws what capture() throws, and BudgetError when no
// number has a plan within the budget; numbers of parts beyond the rows are left out, InputError if that is all
// of them.
MicroBatches micro_batches(const PartFunction& part, const Tensors& sample,
                           const MicroBatchOptions& options = {});

}  // namespace reprise::runtime
