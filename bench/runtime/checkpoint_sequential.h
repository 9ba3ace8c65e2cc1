// This is periodic recomputation as PyTorch's users have it today:
// torch.utils.checkpoint_sequential with use_reentrant=True (torch/utils/checkpoint.py, class
// CheckpointFunction), in C++. It is independent of Reprise's planner and executor, which are
// compared with it.
//
// There are n stages in k segments. Each segment has n / k (rounded down) stages; the last one also
// takes the rest, and runs as in plain training. Every other segment runs without gradients, and
// keeps its inputs and the random state. On the way back it runs again with gradients and calls
// backward() inside. As in PyTorch, batch-norm statistics advance twice and hooks of parameters
// fire inside.
//
// Two things are kinder than PyTorch. Tensors that carry no gradient in plain training (the inputs
// of later time steps of the LSTM) get none here. A first segment whose input needs no gradient
// works, with the least of the usual workarounds: one more input of one element that requires a
// gradient.
#pragma once

#include <cstdint>
#include <vector>

#include "reprise/runtime/stage.h"

namespace reprise::bench {

class CheckpointSequential {
 public:
  // Runs the stages once, to see which outputs carry a gradient.
  CheckpointSequential(std::vector<runtime::Stage> stages, const runtime::Tensors& sample);

  // The number of segments is from 1 to the number of stages; 1 is plain training. The result keeps
  // a pointer to *this until its backward has run.
  runtime::Tensors forward(runtime::Tensors x, int64_t segments) const;

 private:
  friend struct CheckpointSegment;

  std::vector<runtime::Stage> stages_;
  std::vector<std::vector<bool>> carries_gradient_;  // by stage and output
};

}  // namespace reprise::bench
