// What a plan of a model's stages is bound to: a step that differs in any of it is measured and planned anew.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "runtime/state/autocast.h"
#include "reprise/runtime/stage.h"

namespace reprise::runtime::internal::chain {

// What the stages' modules hold. Walking them is the dearest part of getting a step ready, so it is done
// once a step; and at every step, because children are replaced and flags set without leaving a trace.
struct ModelContents {
  std::vector<at::Tensor> parameters, buffers;
  std::vector<bool> training;  // of every module
};
ModelContents contents_of(const std::vector<Stage>& stages);

struct PlanKey {
  struct Input {
    std::vector<int64_t> sizes, strides;
    at::ScalarType dtype;
    c10::Device device;
    bool requires_grad;
    bool operator==(const Input&) const = default;
  };
  // A parameter or a buffer, by identity: its memory may be replaced, not its type.
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
  int threads;  // within operations: their scratch memory depends on it

  bool operator==(const PlanKey&) const = default;
};

// Of this moment; of at least one input.
PlanKey key_of(const Tensors& inputs, const ModelContents& contents);

}  // namespace reprise::runtime::internal::chain
