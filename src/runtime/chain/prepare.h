// Look at the stages of a model once, for one kind of input, before anything is measured or planned.
#pragma once

#include <c10/core/Device.h>

#include <vector>

#include "reprise/runtime/stage.h"
#include "runtime/chain/stage_runner.h"

namespace reprise::runtime {

// The stages as the runtime will run them. Bound to shapes, types, train flags and autocast state.
struct PreparedModel {
  std::vector<PreparedStage> stages;
  std::vector<at::Tensor> parameters;  // that require gradients, each once, in module order
  std::vector<at::Tensor> buffers;     // that a forward pass advances, each once
  c10::Device device{c10::kCPU};
};

// Runs each stage forward twice, once as kept and once fast (and once more where the two differ), and finds out
// what StageTraits says. A stage that only returns views of its input is joined to the one before it. Leaf tensors
// that only its function knows become parameters of a stage. Buffers and random state are put back. InputError
// (with the stage's name) when a stage fails, returns no tensor, mixes devices, does not repeat itself, writes its
// parameters or one of several inputs in one memory, or uses a tensor that has a history from outside.
PreparedModel prepare(const std::vector<Stage>& stages, const Tensors& sample);

// Copies the values of tensors and puts them back; the copies' memory is taken once. Does not touch the
// tensors' version counters: autograd saves the statistics of a batch norm, and would refuse them.
// Follows a tensor whose memory is replaced (to(), torch::load).
class ValueKeeper {
 public:
  explicit ValueKeeper(const std::vector<at::Tensor>& tensors);
  // The copies lie in `memory`, at least bytes_of(tensors) bytes; others may use it in between.
  ValueKeeper(const std::vector<at::Tensor>& tensors, const at::Tensor& memory);
  static int64_t bytes_of(const std::vector<at::Tensor>& tensors);

  // A keeper of some of the tensors that shares this one's copies.
  ValueKeeper part(const std::vector<at::Tensor>& tensors) const;
  void save();
  void restore() const;
  bool changed() const;  // any value since save()

 private:
  ValueKeeper() = default;

  std::vector<at::Tensor> tensors_, copies_;
};

bool bitwise_equal(const at::Tensor& a, const at::Tensor& b);

}  // namespace reprise::runtime
