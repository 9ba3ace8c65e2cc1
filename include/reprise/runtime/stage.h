// The runtime sees the user's model as a list of stages. Each stage is a function of the tensors
// that the stage before it returned.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace reprise::runtime {

using Tensors = std::vector<at::Tensor>;

// The parameters of a stage that are sharded: each rank of a process group holds a part of them,
// and the stage gathers them while it runs, forward and backward (FSDP2). The stage adds up their
// gradients itself.
struct ShardedParameters {
  std::function<bool(const at::Tensor& leaf)> has;  // whether a leaf is one of them, gathered
  // Takes their gradients away. The function that it returns puts them back.
  std::function<std::function<void()>()> take_gradients;
};

// Another function that computes what a stage computes, up to rounding. All ranks of
// RematOptions::group run it at the same places of a step, and share out its work.
struct StageWay {
  std::string name;  // of the option that it becomes
  std::function<Tensors(const Tensors&)> forward;
};

// One stage of a model. `forward` may run several times in one step, with and without gradients. It
// must do the same work each time, apart from random numbers (which are replayed) and buffers of
// `module` (which advance once). It may change its input in place and may return a view of it. The
// measurement notices both, and each costs a copy of the tensors concerned.
struct Stage {
  std::string name;
  std::shared_ptr<torch::nn::Module> module;  // owns the parameters and buffers; may be null
  std::function<Tensors(const Tensors&)> forward;
  // If it is not null, all ranks of RematOptions::group run the stage at the same places of a step.
  std::shared_ptr<const ShardedParameters> sharded = {};
  std::vector<StageWay> ways = {};
};

// A StageBranch is one of several chains of stages that meet in one loss. Branches may share
// modules.
struct StageBranch {
  std::string name;  // The name is unique, not empty, and without '/'.
  std::vector<Stage> stages;
};

}  // namespace reprise::runtime
