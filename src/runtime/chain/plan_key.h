// These are the facts that a plan of a model's stages is bound to. A step that differs in one of
// them is measured and planned again.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "reprise/runtime/stage.h"
#include "runtime/state/autocast.h"

namespace reprise::runtime::internal::chain {

// ModelContents are the contents of the stages' modules. To walk the modules is the most expensive
// part of the preparation of a step, so it is done once a step. It is needed at every step, because
// children are replaced and flags are set without a trace.
struct ModelContents {
  std::vector<at::Tensor> parameters, buffers;
  std::vector<bool> training;  // of every module
};
ModelContents contents_of(const std::vector<StageBranch>& branches, const std::vector<Stage>& tail);

struct PlanKey {
  struct Input {
    size_t branch;
    std::vector<int64_t> sizes, strides;
    at::ScalarType dtype;
    c10::Device device;
    bool requires_grad;
    bool operator==(const Input&) const = default;
  };
  // A Resident is a parameter or a buffer, by identity. Its memory may be replaced, but not its
  // type.
  struct Resident {
    const void* tensor;
    at::ScalarType dtype;
    c10::Device device;
    bool requires_grad;
    bool operator==(const Resident&) const = default;
  };
  std::vector<Input> inputs;
  std::vector<Resident> residents;
  std::vector<bool> training;  // of every module
  state::AutocastState autocast;
  int threads;  // within an operation; its scratch memory depends on them

  bool operator==(const PlanKey&) const = default;
};

// Returns the key of this moment, for the inputs of each branch. Each branch has at least one.
PlanKey key_of(const std::vector<Tensors>& inputs, const ModelContents& contents);

}  // namespace reprise::runtime::internal::chain
