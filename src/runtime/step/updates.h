// These are the updates of an optimizer that are part of a captured step, as values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace reprise::runtime::internal::step {

// An Update is the optimizer's work on one parameter.
struct Update {
  size_t parameter = 0;   // the number of the parameter in the optimizer
  size_t leaf = 0;        // position of its gradient in Recording::gradients
  int32_t external = -1;  // position of its memory in Recording::externals
  int32_t work = -1;      // position of the update in Works::all
  std::string name = {};  // "layer1.weight" where modules are known, else "parameter3"
};

// Updates are all updates of a step. They are empty if the optimizer stays outside the step.
struct Updates {
  std::vector<Update> each = {};  // in the order of the optimizer
  // This work does nothing. It stands for the parameters as the step found them.
  int32_t before = -1;
  // This work does all updates in a row, as the optimizer's own step does.
  int32_t whole = -1;
  std::string optimizer = {};  // its name
};

}  // namespace reprise::runtime::internal::step
