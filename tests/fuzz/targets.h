// Each target is a function that takes any bytes and throws when a promise is broken. A refusal of
// the input with a place in it is no failure; any other exception is one. `make fuzz` searches
// inputs with libFuzzer, and regress/fuzz_corpus_test.cc runs those that were kept.
#pragma once

#include <span>
#include <stdexcept>
#include <string_view>

namespace reprise::fuzz {

struct BrokenPromise : std::logic_error {
  using std::logic_error::logic_error;
};

struct Target {
  const char* name;  // of its folder in tests/fuzz/corpus
  void (*run)(std::string_view bytes);
};

// There is a target for each loader, one for the headers of files of tensors, one for the texts of
// budgets and durations, and these, which use a value that was loaded:
//   check    reads a plan file for a fixed graph: verify, simulate, explain, blocks, interpreter;
//   pipeline, pipeline_plan  plan what was read with every row, and judge it for a fixed pipeline;
//   problem  reads a problem file, and plans it with plain training;
//   search   makes a small valid problem of the bytes, and asks every planner;
//   pack     makes blocks of the bytes, which are packed and verified.
std::span<const Target> targets();

}  // namespace reprise::fuzz
