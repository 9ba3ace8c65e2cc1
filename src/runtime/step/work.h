// What a replay runs: a kernel with its operands, in terms of the values of a recording.
#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/step/recording.h"

namespace reprise::runtime::internal::step {

// Takes its arguments from the stack and leaves its results there.
using Kernel = std::function<void(std::vector<c10::IValue>&)>;

struct Work {
  // A tensor of the results that becomes a value: the `item`-th one of return `result`.
  struct Made {
    size_t result, item;
    int32_t value;
  };

  std::string name;
  Kernel kernel;
  std::vector<Argument> arguments;
  bool grad_mode = false;
  std::vector<Made> made = {};
  std::vector<std::pair<int32_t, int32_t>> overwrites =
      {};                             // (value, the one in whose memory it is)
  std::vector<int32_t> effects = {};  // externals that it writes
  bool apart = false;                 // not measured in its place: running it cannot be undone
};

struct Works {
  std::vector<Work> all;        // first those of the calls, at the same positions; then others
  std::vector<int32_t> rerun;  // by call: without running statistics; -1: no such work
};

// The calls of a recording, and batch norms that leave their statistics alone.
Works works_of(const Recording& recording);

// Step values that it reads and writes, each once. A value that is written over is read, too.
std::vector<int32_t> values_read(const Work& work);
std::vector<int32_t> values_written(const Work& work);

// Equal for works that do the same on other values.
std::string kind_of(const Work& work);

// Appends a value that the list does not have.
void add_once(std::vector<int32_t>& list, int32_t value);

}  // namespace reprise::runtime::internal::step
