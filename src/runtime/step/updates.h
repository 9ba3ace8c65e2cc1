// The updates of an optimizer that are part of a captured step, as values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace reprise::runtime::internal::step {

struct Update {
  size_t parameter = 0;   // its number in the optimizer
  size_t leaf = 0;        // position in Recording::gradients
  int32_t external = -1;  // its memory, in Recording::externals
  int32_t work = -1;      // in Works::all
  std::string name = {};  // "layer1.weight", where modules are known; else "parameter3"
};

// What lower() makes operations of. Empty: the optimizer stays outside.
struct Updates {
  std::vector<Update> each = {};  // in the order of the optimizer
  int32_t before = -1;  // work that does nothing: the parameters are as the step found them
  int32_t whole = -1;   // work: all updates in a row, as the optimizer's step does it
  std::string optimizer = {};
};

}  // namespace reprise::runtime::internal::step
