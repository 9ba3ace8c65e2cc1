// Runs a training step in parts along the batch: gradient accumulation that is planned as one step.
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
// Nothing is computed twice, so this is the cheapest way to save memory where the batch is large
// enough. The computation differs from that of the whole batch at once: sums are rounded in another
// order, each part draws its own random numbers, and a batch norm in training mode sees the rows of
// its part. The bits are those of accumulation by hand.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "reprise/runtime/capture.h"

namespace reprise::runtime {

// A PartFunction does the forward, the loss and the backward of some rows of the batch. `share` is
// the number of these rows over the number of all rows. With this factor the losses (means over
// rows) and the gradients of all parts add up to those of the batch. The results of the parts are
// added up; the loss comes first.
using PartFunction = std::function<Tensors(const Tensors& inputs, double share)>;

// Returns the step that runs `part` on each of `parts` slices along dimension 0. Inputs that are as
// long there as the first one are sliced; the others are given to each part as they are. Slices
// differ by one row at most. The gradients of a part are added to those of the parts before. The
// step throws InputError when there are fewer rows than parts.
StepFunction in_parts(PartFunction part, int64_t parts);

// A BodyFunction is the part of the model that the whole batch goes through before it is divided.
using BodyFunction = std::function<Tensors(const Tensors& inputs)>;

// Returns the step that runs only the tail in parts. The results of `body` are divided in place of
// the inputs, and the first of them says how long the batch is. The forward and the backward of
// each part run together. Then the backward of the body runs, from the gradients of all parts. A
// batch norm in the body sees the whole batch. One part is plain training.
StepFunction in_parts(BodyFunction body, PartFunction part, int64_t parts);

struct MicroBatchOptions {
  // The body is optional. With a body, only the step behind it runs in parts.
  BodyFunction body = {};
  // These numbers of parts are tried in ascending order, until two in a row are slower than an
  // earlier one, or until one costs no time at all. Each is captured at the memory that it takes
  // without a plan, so leave out numbers that the machine has no room for.
  std::vector<int64_t> parts = {1, 2, 4, 8, 16};
  CaptureOptions capture = {};
  // A relative budget is a share of the plain peak with the smallest number of parts. The time
  // limit is for each number.
  StepPlanOptions plan = {};
  // If no number has a plan, the answer is a `chosen` without a plan in place of a BudgetError.
  // Then the step has to be planned before it runs; else it runs as plain training does.
  bool infeasible_is_an_answer = false;
};

struct PartsTried {
  int64_t parts = 1;
  PlanResult result = {};
};

struct MicroBatches {
  CapturedStep step;  // with the fastest plan
  PartsTried chosen;  // that of `step`; without a plan, the one that comes closest to the budget
  std::vector<PartsTried> tried;
};

// Captures and plans the step with each number of parts. Numbers beyond the number of rows are left
// out. Throws what capture() throws, BudgetError when no number has a plan within the budget, and
// InputError when all numbers are left out.
MicroBatches micro_batches(const PartFunction& part, const Tensors& sample,
                           const MicroBatchOptions& options = {});

}  // namespace reprise::runtime
