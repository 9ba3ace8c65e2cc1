// Looks at the stages of a model once for each kind of input, before anything is measured or
// planned.
#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "reprise/runtime/stage.h"
#include "runtime/chain/stage_runner.h"
#include "runtime/distributed/ranks.h"

namespace reprise::runtime::internal::chain {

struct PreparedBranch {
  std::string name;
  size_t first = 0;   // stage
  size_t inputs = 0;  // tensors
};

// A PreparedModel has the stages as the runtime will run them. They are bound to shapes, types,
// train flags and autocast state. A chain is a single branch.
//
// Boundaries count through all branches, like stages. A branch has one boundary more than stages.
struct PreparedModel {
  std::vector<PreparedStage> stages;  // one branch after the other
  std::vector<PreparedBranch> branches;
  // Runs on the outputs of all branches, once in a step; it is part of the loss for a plan.
  std::optional<PreparedStage> tail;
  std::vector<at::Tensor> parameters;  // those that require gradients, each once, in module order
  std::vector<at::Tensor> buffers;     // those that a forward pass advances, each once
  c10::Device device{c10::kCPU};
  std::function<Tensors()> resident = {};  // RematOptions::resident
  distributed::Ranks* ranks = nullptr;     // that train the same stages together with this rank

  size_t branch_of(size_t stage) const;
  bool begins(size_t stage) const { return branches[branch_of(stage)].first == stage; }
  bool ends(size_t stage) const { return stage + 1 == end_of(branch_of(stage)); }
  // Returns the stage behind the last one of a branch.
  size_t end_of(size_t branch) const {
    return branch + 1 < branches.size() ? branches[branch + 1].first : stages.size();
  }
  // These functions return the boundaries before and behind a stage.
  size_t input_of(size_t stage) const { return stage + branch_of(stage); }
  size_t output_of(size_t stage) const { return input_of(stage) + 1; }
  size_t boundaries() const { return stages.size() + branches.size(); }
  // Returns whether a stage behind this one uses the parameter, too, in this branch, in a later
  // one, or in the tail. The backward of this stage then finds a running sum of its gradient.
  bool uses_behind(size_t stage, size_t parameter) const;
  // By branch: the number of tensors that its last stage returns.
  std::vector<size_t> output_counts() const;
  // Per tensor that the model returns: whether a gradient flows back through it.
  std::vector<bool> output_needs_grad() const;
};

// Runs each stage forward twice, once kept and once fast (and up to three times more if the two
// differ), and finds out its StageTraits. A stage that only returns views of its input is joined to
// the stage before it. Leaf tensors that only the function of a stage knows become parameters of
// the stage. Buffers and random state are put back. Throws InputError (with the stage's name) when
// a stage fails, returns no tensor, mixes devices, does not repeat itself, writes its parameters,
// writes one of several inputs in one memory, or uses a tensor from outside that has a history.
// `samples` has the inputs of each branch. The stages of the tail become one stage. With ranks, all
// ranks call this together and find out the same.
PreparedModel prepare(const std::vector<StageBranch>& branches, const std::vector<Stage>& tail,
                      const std::vector<Tensors>& samples, distributed::Ranks* ranks = nullptr);

}  // namespace reprise::runtime::internal::chain
