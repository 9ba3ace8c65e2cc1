// Works are the kernels that a replay runs, with operands that are values and externals of a
// recording.
#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/step/recording.h"

namespace reprise::runtime::internal::step {

// A Kernel takes its arguments from the stack and leaves its results there.
using Kernel = std::function<void(std::vector<c10::IValue>&)>;

struct Work {
  // A Made is a tensor of the results that becomes a value. It is the `item`-th tensor of the
  // return value `result`.
  struct Made {
    size_t result, item;
    int32_t value;
  };

  std::string name;
  Kernel kernel;
  std::vector<Argument> arguments;
  bool grad_mode = false;
  std::vector<Made> made = {};
  // These are pairs of a value and the value in whose memory it is written.
  std::vector<std::pair<int32_t, int32_t>> overwrites = {};
  std::vector<int32_t> effects = {};  // positions of the externals that it writes
  // If true, the work is not measured in its place, because it cannot be undone.
  bool apart = false;
};

struct Works {
  // The works of the calls come first, at the positions of the calls.
  std::vector<Work> all;
  // `rerun` has for each call the work of its re-runs, which leaves running statistics alone. It is
  // -1 where the call itself runs again.
  std::vector<int32_t> rerun;
  // This work does nothing. It stands for the memory of versioned() as the step found it; -1 for none.
  int32_t before = -1;
};

// Says for each external whether a call writes it that another call reads. What it holds before each
// of these writes is then a version of it, which has to be read before.
std::vector<bool> versioned(const Recording& recording);

// Returns the externals that the call reads or writes, in rising order.
std::vector<int32_t> externals_of(const Call& call);

// Returns a work for each call of the recording, and behind them batch norms that leave their
// statistics alone, and the work of Works::before.
Works works_of(const Recording& recording);

// Return the step values that the work reads and writes, each once. A value that is written over is
// read, too.
std::vector<int32_t> values_read(const Work& work);
std::vector<int32_t> values_written(const Work& work);

// Returns a key that is equal for works that do the same on other values.
std::string kind_of(const Work& work);

// Appends the value if the list does not have it.
void add_once(std::vector<int32_t>& list, int32_t value);

}  // namespace reprise::runtime::internal::step
