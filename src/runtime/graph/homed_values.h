// These are the values that may have their home in another memory between the steps: the optimizer's
// state, and parameters.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "reprise/runtime/capture.h"
#include "runtime/step/recording.h"
#include "runtime/step/updates.h"

namespace reprise::runtime::internal::graph {

// A HomedValue is a parameter of the step, or the optimizer's state of one.
struct HomedValue {
  std::string name;
  int64_t bytes = 0;       // as the device counts them
  int32_t external = -1;   // position of a parameter in Recording::externals; -1 for state
  at::Tensor tensor = {};  // the parameter; undefined for state
  std::optional<size_t> update = {};  // position in Updates::each of the update that writes it
  size_t number = 0;                  // of that update's parameter in the optimizer
  bool stays = false;                 // The plan in force leaves it on the device.
};

using HomedValues = std::vector<HomedValue>;

// Returns the state that updates write. `bytes` has the bytes of each update that may move.
HomedValues homed_states(const step::Updates& updates, const std::vector<int64_t>& bytes);

// Returns the parameters of the options that may lie elsewhere: frozen ones, and those that updates
// write, each with a storage of at least a page. Parameters stay that somebody updates outside of the
// step, and those whose memory calls write or the step returns.
HomedValues homed_parameters(const step::Recording& recording, const step::Updates& updates,
                             const CaptureOptions& options);

}  // namespace reprise::runtime::internal::graph
