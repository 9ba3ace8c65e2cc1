// Trains several branches that meet in one loss inside a byte budget: Siamese networks, cross-modal
// networks, and what else a Join describes (model/join.h).
//
//   auto model = reprise::runtime::remat_join({{"left", stages}, {"right", stages}}, {},
//                                             {{a}, {b}}, {.budget = "60%", .loss = contrastive});
//   auto outputs = model->forward({{a}, {b}});  // of the left branch, then of the right one
//   contrastive(outputs).backward();            // as usual
//
// The plan is one of the planner of joins (docs/planners/join.md): it chooses what each branch keeps,
// and in which order the backwards of the branches run. All that remat.h says about steps holds here,
// too: gradients, loss, buffers and random state are plain training's to the bit, the predicted peak
// is the measured one to the byte on the CPU, and a step that fails leaves all as it was.
//
// In plain training, the branches run one after the other, in their order, and then the tail and
// the loss. Autograd walks back through the last branch first. Where branches share a parameter, its
// gradient is the sum over the uses in this order, and a plan keeps the order
// (Join::shared).
//
// Joins do not have values that move to a disk, logs of measured steps, or more than 6 branches.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <vector>

#include "reprise/model/join.h"
#include "reprise/plan/plan.h"
#include "reprise/runtime/remat.h"
#include "reprise/runtime/stage.h"

namespace reprise::runtime {

// A RematJoin is the branches as one module. Its children are the modules of the stages, each once,
// under the names "<branch>_<stage>" and "tail_<stage>" ('.' becomes '_').
class RematJoin : public torch::nn::Module {
 public:
  // The stages of the tail run on the outputs of all branches, one branch after the other. They run
  // once in a step, and a plan counts them with the loss. Without a tail, `options.loss` must be
  // there. It takes what forward() returns. Throws InputError for fewer than two branches, for names
  // that are no names of branches, and for options that joins do not have.
  RematJoin(std::vector<StageBranch> branches, std::vector<Stage> tail, RematOptions options);
  ~RematJoin() override;

  // Takes the inputs of each branch. Returns the outputs of the tail, or else those of all branches,
  // one branch after the other.
  Tensors forward(const std::vector<Tensors>& inputs);

  // Measures and plans for inputs like these, without running a step. The inputs are not changed.
  void plan_for(const std::vector<Tensors>& inputs);

  // Sets the budget from the next step on. Measurements are kept.
  void set_budget(Budget budget);

  // These functions describe the last plan. They throw InputError when nothing was planned yet.
  const PlanResult& plan() const;
  Join join() const;  // the measured problem, which the plan answers
  StepReport last_step() const;
  // Returns how many measurements and searches there were so far (StepReport::overheads).
  int64_t overhead_count() const;

 private:
  std::shared_ptr<Remat::State> state_;
};

// Measures on the samples, which are the inputs of each branch, and plans. When the budget is
// infeasible, the function throws BudgetError with the smallest feasible budget. The samples stay the
// caller's and are not changed.
std::shared_ptr<RematJoin> remat_join(std::vector<StageBranch> branches, std::vector<Stage> tail,
                                      const std::vector<Tensors>& samples, RematOptions options);

}  // namespace reprise::runtime
