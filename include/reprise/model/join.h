// A Join is several chains that meet in one loss: Siamese networks, cross-modal networks, and other
// models of several branches. It follows "Optimal memory-aware backpropagation of deep join
// networks" (Beaumont, Herrmann, Pallez, Shilova, Phil. Trans. R. Soc. A 378, 2020), and it keeps
// what a Chain adds to that model: stages that differ, several options a stage, gradients and
// weight gradients with sizes of their own.
//
// The branches share nothing but the loss. It reads the last activation of every branch and writes
// its gradient. So the backwards of a branch run in their order, and those of different branches
// may run in any order: a plan of a join chooses the interleaving. A Join is a compact way to write
// a Graph. As the backwards of a graph have one order, lower() takes the interleaving, and a plan
// is judged on the graph that has the plan's own.
//
// Weights that branches share have one gradient, the sum over their uses. `shared` names the stages
// that use them, so that a plan sums in plain training's order. Give the bytes of the gradient to
// the use whose backward is the first in this order, and no weight gradient to the other uses.
// Layers behind the place where the branches meet are part of the loss.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "reprise/model/chain.h"
#include "reprise/model/graph.h"
#include "reprise/model/plan.h"
#include "reprise/model/units.h"

namespace reprise {

struct Branch {
  std::string name;  // The name is unique, not empty, and without '/'.
  ChainInput input;
  std::vector<Stage> stages;

  bool operator==(const Branch&) const = default;
};

struct StagePlace {
  size_t branch = 0;
  size_t stage = 0;  // in the branch

  bool operator==(const StagePlace&) const = default;
};

// Stages of two branches or more that use the same weights. Sums of floating-point numbers depend on
// their order, so the backwards of these stages run in plain training's order: those of a later
// branch run before those of an earlier one.
using SharedWeights = std::vector<StagePlace>;

struct Join {
  std::string name;
  Bytes fixed;  // held during the whole step: parameters, optimizer state, the caller's tensors
  std::vector<Branch> branches;  // There are at least two. Plain training runs them in this order.
  ChainLoss loss;  // A loss that consumes gives back the last activation of every branch.
  std::vector<SharedWeights> shared = {};

  bool operator==(const Join&) const = default;
};

// Throws InputError, with a JSON pointer, unless the join is well formed: it has two branches or
// more, their names are legal and unique, each branch is a well-formed chain, the stages that share
// weights exist and belong to two branches or more, and the sums of all sizes and of all times fit
// 64 bits.
void validate(const Join& join);

// Returns the join without the options that are less exact than `allowed`. Throws InputError if a
// stage loses every option.
Join restrict_exactness(const Join& join, Exactness allowed);

// Returns a branch as a chain of its own, with a loss that takes nothing. The fixed bytes of the
// join are not in it.
Chain branch_chain(const Branch& branch);

// An interleaving names the branch of each backward, in the order in which they run: a branch
// occurs once for each of its stages.
using Interleaving = std::vector<size_t>;

// Returns plain training's interleaving: the last branch comes first, and each is finished before
// the next one begins, as autograd does it.
Interleaving plain_interleaving(const Join& join);

// Returns whether the backwards of stages that share weights run in plain training's order. The
// interleaving must have every branch once for each stage.
bool keeps_shared_order(const Join& join, const Interleaving& interleaving);

// Returns the interleaving of the runs in a list of actions. If the list does not run every
// backward once, the rest follows in plain training's order. If stages that share weights run in
// another order than plain training's, the function returns plain training's interleaving. In both
// cases a verifier finds the fault.
Interleaving interleaving_of(const Join& join, const std::vector<Action>& actions);

// Returns the graph of a join. It has the values and ops of lower() of each branch's chain, with
// "<branch>/" before each id, but one loss for all of them. Forwards come first, branch by branch,
// then the loss, and then the backwards in the order of the interleaving. Validates the join first.
// Throws InputError if the interleaving does not have every branch once for each stage, or does not
// keep the order of shared weights. The cost is O(stages * options).
Graph lower(const Join& join, const Interleaving& interleaving);
Graph lower(const Join& join);  // with plain training's interleaving

// A JoinIndex gives the positions in lower(join).
class JoinIndex {
 public:
  explicit JoinIndex(const Join& join);

  OpIndex forward(size_t branch, size_t stage) const {
    return static_cast<OpIndex>(first_[branch] + stage);
  }
  OpIndex loss() const { return static_cast<OpIndex>(stages_); }
  // Plain training's backwards are its forwards in reverse.
  OpIndex backward(size_t branch, size_t stage) const {
    return static_cast<OpIndex>(2 * stages_ - (first_[branch] + stage));
  }

 private:
  std::vector<size_t> first_;  // by branch: the number of stages in the branches before it
  size_t stages_ = 0;
};

}  // namespace reprise
