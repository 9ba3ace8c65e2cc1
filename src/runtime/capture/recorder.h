// Records the leaf operations of one run of a training step.
#pragma once

#include <ATen/record_function.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "capture/before_images.h"
#include "capture/recording.h"
#include "reprise/runtime/capture.h"

namespace reprise::runtime {

// What schemas do not say, found out by watching the bytes of every storage through one run.
struct Audit {
  // Arguments that an operator writes without declaring it: (operator, position).
  std::set<std::pair<std::string, size_t>> writes;
  std::vector<bool> draws;  // by call: it advanced a random generator
  // Values whose bytes the host put there, without an operator (at::tensor({1, 2, 3})).
  std::set<int32_t> host_written;
  uint64_t begun = 0;  // the allocator's serial number when the run began
};

// Runs the step once and records it. With `learn`, watches all bytes and fills it (as slow as reading
// every operand twice); without, `known` says what an earlier run learned. What the step writes outside
// itself is kept in `images`. Recording changes no bit of what the step computes.
//
// Throws InputError when the step cannot be replayed, naming the operation and the reason. One recording
// at a time in a process.
Recording record(const StepFunction& step, const Tensors& inputs, c10::Device device,
                 BeforeImages& images, Audit* learn, const Audit* known);

}  // namespace reprise::runtime
